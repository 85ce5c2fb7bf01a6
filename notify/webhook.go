package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// The headers of a webhook's request, beside Content-Type: application/json.
const (
	// SignatureHeader is "sha256=" and the hex of HMAC-SHA256, keyed with the
	// channel's Secret, over the timestamp, a dot, and the body.
	SignatureHeader = "X-Breaker-Signature"
	// TimestampHeader is when the request was signed, in Unix seconds.
	TimestampHeader = "X-Breaker-Timestamp"
	// DeliveryHeader is the Message's ID: the same when it is tried again.
	DeliveryHeader = "X-Breaker-Delivery"
)

// A webhook sends messages as JSON. Any 2xx is success. A redirect is not
// followed, and a 4xx other than 408, 425 and 429 is not tried again.
type webhook struct {
	url    string
	secret string
	hide   redactor
	client *http.Client
}

func newWebhook(u *url.URL, secret string) (sender, error) {
	switch {
	case secret == "":
		return nil, errors.New("a webhook needs a Secret to be signed with")
	case u.Host == "":
		return nil, errors.New("the webhook's URL has no host")
	}
	w := &webhook{url: u.String(), secret: secret, hide: newRedactor(u), client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	w.hide.pieces = append([]string{secret}, w.hide.pieces...)
	return w.send, nil
}

func (w *webhook) send(ctx context.Context, m Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return permanentError{fmt.Errorf("the message can't be written: %w", err)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return permanentError{w.hide.error(err)}
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "breaker-notify/1")
	req.Header.Set(TimestampHeader, timestamp)
	req.Header.Set(SignatureHeader, sign(w.secret, timestamp, body))
	req.Header.Set(DeliveryHeader, m.ID)
	resp, err := w.client.Do(req)
	if err != nil {
		return w.hide.error(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return fmt.Errorf("the server answered %d", code)
	default:
		return permanentError{fmt.Errorf("the server answered %d", code)}
	}
}

func sign(secret, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(timestamp + "."))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// Verify is for whoever receives a webhook: it reports whether header and body
// come from somebody who has secret, and were signed at most maxAge ago (and
// not as far in the future). A receiver that keeps the IDs of DeliveryHeader
// for maxAge can tell a repetition.
func Verify(secret string, header http.Header, body []byte, maxAge time.Duration) error {
	timestamp := header.Get(TimestampHeader)
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return fmt.Errorf("notify: %s is %.32q: not Unix seconds", TimestampHeader, timestamp)
	}
	if secret == "" || !hmac.Equal([]byte(sign(secret, timestamp, body)), []byte(header.Get(SignatureHeader))) {
		return errors.New("notify: the signature does not match")
	}
	if age := time.Since(time.Unix(seconds, 0)); age > maxAge || age < -maxAge {
		return fmt.Errorf("notify: signed %v ago: too far from now", age.Round(time.Second))
	}
	return nil
}
