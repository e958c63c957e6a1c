package httpapi

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"pawl/access"
)

// admitted serves a request within the limits of its principal, who is told what is left of them.
func (s *server) admitted(w http.ResponseWriter, r *http.Request, p *access.Principal, next http.HandlerFunc) error {
	admission, err := s.Access.Admit(p)
	if err != nil {
		return err
	}
	if admission == nil {
		next(w, r)
		return nil
	}
	writeQuotas(w.Header(), admission.Quotas())
	rec := recordOf(w)
	rec.done = admission.Done
	defer func() {
		if rec.done != nil {
			rec.done(rec.length)
		}
	}()
	next(w, r)
	return nil
}

// writeQuotas tells a caller of the quotas that hold for him, by draft 11 of "RateLimit header fields for HTTP". Whoever
// follows another draft changes nothing else.
func writeQuotas(header http.Header, quotas []access.Quota) {
	var policies, left []string
	for _, q := range quotas {
		policy, now := fmt.Sprintf("%q;q=%d", q.Name, q.Most), fmt.Sprintf("%q;r=%d", q.Name, q.Remaining)
		if q.Unit != "requests" { // which it is unless it says so
			policy += fmt.Sprintf(";qu=%q", q.Unit)
		}
		if q.Window > 0 {
			policy += ";w=" + wholeSeconds(q.Window)
			now += ";t=" + wholeSeconds(q.Wait)
		}
		policies, left = append(policies, policy), append(left, now)
	}
	header.Set("RateLimit-Policy", strings.Join(policies, ", "))
	header.Set("RateLimit", strings.Join(left, ", "))
}

// wholeSeconds is a time in seconds, rounded up: who comes earlier comes in vain.
func wholeSeconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }
