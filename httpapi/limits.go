package httpapi

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"pawl/internal/access"
)

// withinLimits counts the request that is answered with w against the limits of its principal, who is told what is left of
// them. It returns the error of a request beyond a limit.
func (s *server) withinLimits(w http.ResponseWriter, p *access.Principal) error {
	admission, err := s.Access.Admit(p)
	if err != nil || admission == nil {
		return err
	}
	writeQuotas(w.Header(), admission.Quotas())
	recordOf(w).done = admission.Done
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
