// Package httpbreaker puts a breaker.Breaker into HTTP clients, and tells HTTP
// servers how to pass a rejection on.
//
//	client := &http.Client{Transport: &httpbreaker.Transport{Breaker: b}}
//
// Every request of the client is then a call of the circuit of its host.
package httpbreaker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/breakerkit/breaker"
)

// A Transport is an http.RoundTripper that asks a Breaker before each request
// and tells it what came of it. It may be used concurrently; its fields must
// not change once it is in use.
//
// A request that is rejected is not sent: its body is closed unread, and
// RoundTrip returns the *breaker.RejectedError, which errors.As finds through
// the *url.Error of http.Client. Any response, a 503 too, is returned as it
// came, and the errors of Base are returned unchanged.
//
// What counts is decided by the Breaker's Classifier. It is shown the error of
// Base, the error that the body ended in, or, for a status of 400 or more, what
// breaker.CheckResponse makes of the response, Retry-After included. When it
// counts:
//
//   - A response with status 429 or 5xx, one without a body, and one that hands
//     the connection over (101, or 2xx to a CONNECT) count as soon as they come.
//   - Any other counts at the end of its body: what breaks off halfway is a
//     Failure. The time until then is the time of the call, for SlowRate too.
//   - The caller may hang up first: close the body before its end, or cancel the
//     context. That is Ignored. But a body that is closed when only a little of
//     it is left, and that little comes within 10ms, has ended; and a 4xx that
//     is closed early counts as the answer it is.
//   - A body that is neither read to its end nor closed never counts. If it is a
//     probe's, the slot is free once Policy.ProbeLease is over.
//
// Policy.CallTimeout bounds the whole, the reading of the body included, but not
// a connection that a 101 handed over.
type Transport struct {
	// Breaker is asked about each request. nil is an ErrConfig for each.
	Breaker *breaker.Breaker

	// Base sends the requests. nil: http.DefaultTransport.
	Base http.RoundTripper

	// Key names the circuit of a request; the empty key means that the request
	// is sent unprotected. Keys should come from a bounded set. It must not
	// change the request. nil: HostKey.
	Key func(*http.Request) string
}

// HostKey is the key of a request unless Transport.Key says otherwise: the host
// it is sent to, in lower case, with its port unless that is the scheme's own.
func HostKey(req *http.Request) string {
	if req.URL == nil {
		return ""
	}
	host := strings.ToLower(req.URL.Host)
	if port, ok := ownPort[req.URL.Scheme]; ok {
		host = strings.TrimSuffix(host, port)
	}
	return host
}

var ownPort = map[string]string{"http": ":80", "https": ":443"}

var errNotReturned = errors.New("httpbreaker: Base panicked or ended its goroutine")

// RoundTrip sends req through Base if the circuit lets it.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req == nil {
		return nil, fmt.Errorf("%w: httpbreaker.Transport: the request is nil", breaker.ErrConfig)
	}
	if t.Breaker == nil {
		closeBody(req)
		return nil, fmt.Errorf("%w: httpbreaker.Transport: Breaker is nil", breaker.ErrConfig)
	}
	key := t.key(req)
	if key == "" {
		return t.base().RoundTrip(req)
	}
	call, err := t.Breaker.Allow(req.Context(), key)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	e := &exchange{call: call, ctx: req.Context()}
	sent := e.limit(req)
	resp, err := e.send(t.base(), sent)
	if err != nil {
		e.settle(err)
		return nil, err
	}
	if resp.Request == sent {
		resp.Request = req
	}
	e.receive(req, resp)
	return resp, nil
}

// CloseIdleConnections closes those of Base, if it can.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) key(req *http.Request) string {
	if t.Key == nil {
		return HostKey(req)
	}
	return t.Key(req)
}

// closeBody does what a RoundTripper owes a request it does not send.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// An exchange is one request that was let through, until its response has ended.
type exchange struct {
	call   *breaker.Call
	ctx    context.Context    // the caller's
	cancel context.CancelFunc // ends the deadline of CallTimeout; nil: there is none
}

// limit puts the deadline of CallTimeout on the request. It is a deadline of
// its own, since the context of the call ends with Done, and the body of an
// error that has counted may still be read.
func (e *exchange) limit(req *http.Request) *http.Request {
	deadline, ok := e.call.Context().Deadline()
	if own, has := e.ctx.Deadline(); !ok || has && !deadline.Before(own) {
		return req
	}
	ctx, cancel := context.WithDeadline(e.ctx, deadline)
	e.cancel = cancel
	return req.WithContext(ctx)
}

func (e *exchange) release() {
	if e.cancel != nil {
		e.cancel()
	}
}

// settle says how the call went, unless that has been said, and ends it.
func (e *exchange) settle(err error) {
	e.call.Done(err)
	e.release()
}

// send makes sure that the call is settled even if Base does not return.
func (e *exchange) send(base http.RoundTripper, req *http.Request) (resp *http.Response, err error) {
	returned := false
	defer func() {
		if !returned {
			e.settle(errNotReturned)
		}
	}()
	resp, err = base.RoundTrip(req)
	returned = true
	if resp == nil && err == nil {
		err = fmt.Errorf("httpbreaker: %T returned neither a response nor an error", base)
	}
	return resp, err
}

// receive settles a call whose response says all there is to say, and has the
// body of any other say it.
func (e *exchange) receive(req *http.Request, resp *http.Response) {
	status := breaker.CheckResponse(resp)
	if resp.StatusCode == http.StatusSwitchingProtocols || bodiless(req, resp) {
		e.settle(status)
		return
	}
	tunnel := req.Method == http.MethodConnect && resp.StatusCode < 300
	if tunnel || unwell(resp.StatusCode) {
		e.call.Done(status)
		if _, writable := resp.Body.(io.Writer); writable || e.cancel == nil {
			return // the body as it is: nothing waits for its end
		}
	}
	resp.Body = newBody(e, resp, status)
}

// unwell reports whether a server with this answer has said how it is.
func unwell(code int) bool { return code >= 500 || code == http.StatusTooManyRequests }

// bodiless reports whether there is nothing to read. Hand-made responses, of
// no protocol, say so by http.NoBody alone: they leave the length unset.
func bodiless(req *http.Request, resp *http.Response) bool {
	switch {
	case resp.Body == nil, resp.Body == http.NoBody, req.Method == http.MethodHead,
		resp.StatusCode == http.StatusNoContent, resp.StatusCode == http.StatusNotModified:
		return true
	}
	return resp.ContentLength == 0 && resp.ProtoMajor > 0
}
