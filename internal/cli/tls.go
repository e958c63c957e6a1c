package cli

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// keyPair is a certificate and its key, in files that are replaced now and then.
type keyPair struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	loaded *tls.Certificate
	read   [2]fileState // the files when they were read last, well or not
}

// fileState is what tells a file from the one that it replaces.
type fileState struct {
	changed time.Time
	size    int64
}

// certificate is the one that the files hold. They are looked at before each handshake, which takes a hundred times as
// long. While they can't be used, as when only one of them is there yet, the one before goes on.
func (k *keyPair) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := [2]fileState{stateOf(k.certFile), stateOf(k.keyFile)}
	if k.loaded != nil && now == k.read {
		return k.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	switch {
	case err != nil && k.loaded == nil:
		return nil, fmt.Errorf("read certificate: %w", err)
	case err != nil:
		k.log.Warn("the new certificate can't be used, so the one before is", "file", k.certFile, "error", err)
	default:
		if k.loaded != nil {
			k.log.Info("the certificate was replaced", "file", k.certFile, "until", pair.Leaf.NotAfter)
		}
		k.loaded = &pair
	}
	k.read = now
	return k.loaded, nil
}

func stateOf(file string) fileState {
	info, err := os.Stat(file)
	if err != nil {
		return fileState{}
	}
	return fileState{info.ModTime(), info.Size()}
}
