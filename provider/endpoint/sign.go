package endpoint

import "pawl/signing"

// signingKey reads the secret of the step and returns its text, which must never be shown, and the key of
// the HMAC. No secret at all: nothing is signed.
func (e *endpoint) signingKey() (text string, key []byte, err error) {
	text, err = e.bounds.ReadKey(&e.how)
	if err != nil || text == "" {
		return "", nil, err
	}
	key, err = signing.Key(text)
	return text, key, err
}
