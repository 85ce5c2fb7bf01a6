package httpbreaker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// How much of a body Close reads to find its end, and how long it waits. Who
// wants the status alone, or one JSON value, closes the body a few bytes before
// its end: that is no hanging up.
const (
	tailBytes = 4 << 10
	tailTime  = 10 * time.Millisecond
)

var errHungUp = breaker.Ignore(errors.New("httpbreaker: the caller closed the body before its end"))

// A body settles its exchange at its end: at EOF, at an error, when it is
// closed, or when the caller's context ends while nobody reads.
type body struct {
	inner    io.ReadCloser
	exchange *exchange
	status   error       // what closing it early counts as; nil: the caller hung up
	length   int64       // as announced; -1: unknown
	forget   func() bool // ends the watch on the caller's context
	once     sync.Once   // closes inner

	mu      sync.Mutex
	got     int64 // bytes read so far
	readers int   // in Read
	ended   bool  // an EOF, an error or Close has been seen
	closed  bool
	err     error // of closing
}

func newBody(e *exchange, resp *http.Response, status error) *body {
	b := &body{inner: resp.Body, exchange: e, status: status, length: resp.ContentLength}
	b.forget = func() bool { return true }
	if e.ctx.Done() != nil {
		b.forget = context.AfterFunc(e.ctx, b.abandon)
	}
	return b
}

// Read reads on. The first error, which io.EOF is too, ends the call.
func (b *body) Read(p []byte) (int, error) {
	if !b.begin() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.inner.Read(p)
	b.mu.Lock()
	b.readers--
	b.got += int64(n)
	b.ended = b.ended || err != nil
	b.mu.Unlock()
	switch {
	case err == io.EOF:
		b.settle(b.status)
	case err != nil:
		b.settle(err)
	}
	return n, err
}

func (b *body) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.readers++
	return true
}

// Close closes the body, also while another goroutine reads it. A second time
// it returns what it returned the first time.
func (b *body) Close() error {
	b.mu.Lock()
	early, idle := !b.ended, b.readers == 0
	b.ended, b.closed = true, true
	b.mu.Unlock()
	if early {
		b.settle(b.early(idle))
	}
	b.once.Do(func() { b.err = b.inner.Close() })
	return b.err
}

// early is what closing the body before its end was seen counts as.
func (b *body) early(idle bool) error {
	switch {
	case b.status != nil:
		return b.status
	case idle && b.exchange.ctx.Err() == nil && b.endsNow():
		return nil
	}
	return errHungUp
}

// endsNow reads what little may be left. It is called once, when nobody reads
// any more. The reading may outlast it, until the body is closed.
func (b *body) endsNow() bool {
	if b.length >= 0 && b.length-b.got > tailBytes {
		return false
	}
	ended := make(chan bool, 1)
	go func() {
		var err error
		defer func() {
			_ = recover() // nobody asked for this read
			ended <- err == io.EOF
		}()
		_, err = io.CopyN(io.Discard, b.inner, tailBytes)
	}()
	limit := time.NewTimer(tailTime)
	defer limit.Stop()
	select {
	case end := <-ended:
		return end
	case <-limit.C:
		return false
	}
}

// abandon is called when the caller's context ends. A Read under way will see
// for itself; if there is none, nobody may ever read or close the body.
func (b *body) abandon() {
	b.mu.Lock()
	idle := b.readers == 0 && !b.ended
	b.mu.Unlock()
	if idle {
		b.exchange.settle(errHungUp)
	}
}

func (b *body) settle(err error) {
	b.exchange.settle(err)
	b.forget()
}
