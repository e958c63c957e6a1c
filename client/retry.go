package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// Pauses between attempts where the service does not say how long.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
)

// repeat makes attempts until one has an answer that is not worth another, or the next one would come too late.
func (e *exchange) repeat(ctx context.Context, attempt func() error) error {
	began := time.Now()
	for tries := 1; ; tries++ {
		err := attempt()
		if err == nil || !retryable(err) || ctx.Err() != nil {
			return e.lastly(err, tries)
		}
		pause := pauseAfter(err, tries)
		if end, ok := ctx.Deadline(); ok && time.Until(end) < pause || time.Since(began)+pause > e.retryFor || !sleep(ctx, pause) {
			return fmt.Errorf("%w (tried %d times in %s)", err, tries, time.Since(began).Round(time.Millisecond))
		}
	}
}

// lastly takes it for success that there is nothing to delete any more where an earlier attempt may have deleted it.
func (e *exchange) lastly(err error, tries int) error {
	if problem, ok := errors.AsType[*Problem](err); ok && e.method == http.MethodDelete && tries > 1 && problem.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// retryable says whether the same request may do better: the service asks for it, or the connection was lost. Whether
// the service did what was asked does not matter, because of the key.
func retryable(err error) bool {
	if problem, ok := errors.AsType[*Problem](err); ok {
		switch problem.Status {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
	}
	_, lost := errors.AsType[lostError](err)
	_, uncertified := errors.AsType[*tls.CertificateVerificationError](err)
	return lost && !uncertified
}

// pauseAfter is how long to wait: at least Retry-After, and with a part by chance, so that not all callers come back at once.
func pauseAfter(err error, tries int) time.Duration {
	if problem, ok := errors.AsType[*Problem](err); ok && problem.RetryAfter > 0 {
		return problem.RetryAfter + rand.N(firstPause)
	}
	pause := min(firstPause<<min(tries-1, 10), mostPause)
	return pause/2 + rand.N(pause/2)
}

// sleep waits, and says whether ctx did not end meanwhile.
func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}
