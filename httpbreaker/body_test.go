package httpbreaker_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// A stream is a response body that a test feeds. Closing it ends a Read, as it
// does with the bodies of net/http.
type stream struct {
	*io.PipeReader
	feed   *io.PipeWriter
	closed atomic.Int32
}

func newStream() *stream {
	r, w := io.Pipe()
	return &stream{PipeReader: r, feed: w}
}

func (s *stream) Close() error {
	s.closed.Add(1)
	return s.PipeReader.Close()
}

// streamed runs a test in virtual time on the body of a 200 that answers a
// call: once of a closed circuit, once a probe. ctx is the call's.
func streamed(t *testing.T, p breaker.Policy, want breaker.Outcome, test func(t *testing.T, cancel func(), s *stream, body io.ReadCloser)) {
	t.Helper()
	for _, probe := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newStream()
			p.ConsecutiveFailures, p.Cooldown = 1, time.Minute
			r := newRig(t, answer(200, s), breaker.Config{Policy: p})
			if probe {
				_ = r.Breaker.Execute(context.Background(), "x.test", func(context.Context) error { return errors.New("down") })
				time.Sleep(time.Minute)
				r.seen.outcomes = nil
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			resp, err := r.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, "http://x.test", nil))
			require.NoError(t, err)
			require.Empty(t, r.seen.said(), "not before the end")
			test(t, cancel, s, resp.Body)
			synctest.Wait()
			require.Equal(t, []breaker.Outcome{want}, r.seen.said(), "probe: %v", probe)
			if probe {
				r.requireProbe(t, "x.test", want)
			}
			_ = resp.Body.Close()
			assert.Equal(t, int32(1), s.closed.Load(), "closed once, whatever the caller did")
			_ = s.feed.Close()
			assert.Len(t, r.seen.said(), 1)
		})
	}
}

func write(t *testing.T, s *stream, text string) {
	t.Helper()
	go func() { _, _ = io.WriteString(s.feed, text) }()
}

func TestABodyReadToItsEndIsASuccess(t *testing.T) {
	streamed(t, breaker.Policy{}, breaker.Success, func(t *testing.T, _ func(), s *stream, body io.ReadCloser) {
		go func() {
			for range 10 {
				_, _ = io.WriteString(s.feed, "part ")
				time.Sleep(time.Second)
			}
			_ = s.feed.Close()
		}()
		all, err := io.ReadAll(body)
		assert.NoError(t, err)
		assert.Equal(t, strings.Repeat("part ", 10), string(all))
	})
}

func TestABodyThatBreaksOffIsAFailure(t *testing.T) {
	streamed(t, breaker.Policy{}, breaker.Failure, func(t *testing.T, _ func(), s *stream, body io.ReadCloser) {
		go func() {
			_, _ = io.WriteString(s.feed, "part ")
			_ = s.feed.CloseWithError(io.ErrUnexpectedEOF)
		}()
		all, err := io.ReadAll(body)
		assert.Equal(t, io.ErrUnexpectedEOF, err, "the error of Base, unchanged")
		assert.Equal(t, "part ", string(all))
		_, err = body.Read(make([]byte, 1))
		assert.Equal(t, io.ErrUnexpectedEOF, err, "and still so")
	})
}

func TestClosingABodyThatGoesOnIsNoVerdict(t *testing.T) {
	for name, before := range map[string]string{"silent": "", "halfway": "part"} {
		t.Run(name, func(t *testing.T) {
			streamed(t, breaker.Policy{}, breaker.Ignored, func(t *testing.T, _ func(), s *stream, body io.ReadCloser) {
				if before != "" {
					write(t, s, before)
					_, err := io.ReadFull(body, make([]byte, len(before)))
					require.NoError(t, err)
				}
				began := time.Now()
				assert.NoError(t, body.Close())
				assert.LessOrEqual(t, time.Since(began), 10*time.Millisecond, "in virtual time")
				_, err := body.Read(make([]byte, 1))
				assert.ErrorIs(t, err, http.ErrBodyReadAfterClose)
			})
		})
	}
	t.Run("with much to come", func(t *testing.T) {
		streamed(t, breaker.Policy{}, breaker.Ignored, func(t *testing.T, _ func(), s *stream, body io.ReadCloser) {
			write(t, s, strings.Repeat("much ", 10_000))
			assert.NoError(t, body.Close())
		})
	})
	t.Run("with much to come, as announced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStream()
			r := newRig(t, roundTrip(func(req *http.Request) (*http.Response, error) {
				resp, err := answer(200, s)(req)
				resp.ContentLength = 1 << 20
				return resp, err
			}), breaker.Config{})
			resp, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
			require.NoError(t, err)
			began := time.Now()
			assert.NoError(t, resp.Body.Close())
			assert.Zero(t, time.Since(began), "it does not look for the end")
			assert.Equal(t, []breaker.Outcome{breaker.Ignored}, r.seen.said())
		})
	})
	t.Run("that breaks off just then", func(t *testing.T) {
		streamed(t, breaker.Policy{}, breaker.Ignored, func(t *testing.T, _ func(), s *stream, body io.ReadCloser) {
			_ = s.feed.CloseWithError(io.ErrUnexpectedEOF)
			assert.NoError(t, body.Close())
		})
	})
}

// Who wants the status alone, or one JSON value, closes before io.EOF is seen.
func TestClosingABodyAtItsEndIsASuccess(t *testing.T) {
	t.Run("unread", func(t *testing.T) {
		streamed(t, breaker.Policy{}, breaker.Success, func(t *testing.T, _ func(), s *stream, body io.ReadCloser) {
			go func() {
				_, _ = io.WriteString(s.feed, `{"ok":true}`)
				_ = s.feed.Close()
			}()
			assert.NoError(t, body.Close())
		})
	})
	t.Run("after one value", func(t *testing.T) {
		streamed(t, breaker.Policy{}, breaker.Success, func(t *testing.T, _ func(), s *stream, body io.ReadCloser) {
			go func() {
				_, _ = io.WriteString(s.feed, `{"ok":true}`)
				_, _ = io.WriteString(s.feed, "\n")
				_ = s.feed.Close()
			}()
			var got struct{ OK bool }
			assert.NoError(t, json.NewDecoder(body).Decode(&got))
			assert.True(t, got.OK)
			assert.NoError(t, body.Close())
		})
	})
}

func TestACallerWhoCancelsIsNoVerdict(t *testing.T) {
	t.Run("while it reads", func(t *testing.T) {
		streamed(t, breaker.Policy{}, breaker.Ignored, func(t *testing.T, cancel func(), s *stream, body io.ReadCloser) {
			go func() {
				time.Sleep(time.Second)
				cancel()
				_ = s.feed.CloseWithError(errors.New("stream reset")) // as a driver words it
			}()
			_, err := io.ReadAll(body)
			assert.ErrorContains(t, err, "stream reset")
		})
	})
	t.Run("and does nothing more", func(t *testing.T) {
		streamed(t, breaker.Policy{}, breaker.Ignored, func(_ *testing.T, cancel func(), _ *stream, _ io.ReadCloser) {
			cancel()
		})
	})
	t.Run("and closes", func(t *testing.T) {
		streamed(t, breaker.Policy{}, breaker.Ignored, func(t *testing.T, cancel func(), _ *stream, body io.ReadCloser) {
			cancel()
			assert.NoError(t, body.Close())
		})
	})
	t.Run("but after the end", func(t *testing.T) {
		streamed(t, breaker.Policy{}, breaker.Success, func(t *testing.T, cancel func(), s *stream, body io.ReadCloser) {
			_ = s.feed.Close()
			_, err := body.Read(make([]byte, 1))
			assert.Equal(t, io.EOF, err)
			cancel()
		})
	})
}

func TestClosingTwiceIsClosingOnce(t *testing.T) {
	streamed(t, breaker.Policy{}, breaker.Ignored, func(t *testing.T, _ func(), _ *stream, body io.ReadCloser) {
		assert.NoError(t, body.Close())
		assert.NoError(t, body.Close())
	})
	streamed(t, breaker.Policy{}, breaker.Ignored, func(_ *testing.T, _ func(), _ *stream, body io.ReadCloser) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { _ = body.Close() })
		}
		wg.Wait()
	})
}

func TestCloseEndsAReadUnderWayAndIsNoVerdict(t *testing.T) {
	streamed(t, breaker.Policy{}, breaker.Ignored, func(t *testing.T, _ func(), _ *stream, body io.ReadCloser) {
		read := make(chan error)
		go func() {
			_, err := body.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		began := time.Now()
		assert.NoError(t, body.Close())
		assert.Error(t, <-read)
		assert.Zero(t, time.Since(began), "it does not look for the end while another reads")
	})
}

// A body that errs, and is closed at the same moment by somebody else, has one
// verdict; the race detector looks on.
func TestReadAndCloseMayRace(t *testing.T) {
	for range 200 {
		s := newStream()
		r := newRig(t, answer(200, s), breaker.Config{})
		resp, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.WriteString(s.feed, "part"); _ = s.feed.CloseWithError(io.ErrUnexpectedEOF) })
		wg.Go(func() { _, _ = io.Copy(io.Discard, resp.Body) })
		wg.Go(func() { _ = resp.Body.Close() })
		wg.Wait()
		said := r.seen.said()
		require.Len(t, said, 1)
		require.NotEqual(t, breaker.Success, said[0])
	}
}

func TestABodyNeverClosedCostsOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, answer(200, newStream()), breaker.Config{
			Policy: breaker.Policy{ConsecutiveFailures: 1, Cooldown: time.Minute, ProbeLease: 30 * time.Second}})
		_ = r.Breaker.Execute(context.Background(), "x.test", func(context.Context) error { return errors.New("down") })
		time.Sleep(time.Minute)
		get := func() error {
			_, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
			return err
		}
		require.NoError(t, get()) // and forgets its body
		time.Sleep(29 * time.Second)
		assert.Equal(t, time.Second, rejection(t, get()).RetryAfter)
		assert.ErrorIs(t, get(), breaker.ErrBusy)
		time.Sleep(time.Second)
		assert.NoError(t, get())
	})
}

func TestCallTimeoutLivesUntilTheBodysEnd(t *testing.T) {
	const timeout = 10 * time.Second
	// The body of a real connection ends with the context of its request.
	answer := func(s *stream) roundTrip {
		return func(req *http.Request) (*http.Response, error) {
			stop := context.AfterFunc(req.Context(), func() { _ = s.feed.CloseWithError(req.Context().Err()) })
			t.Cleanup(func() { stop() })
			return answer(200, s)(req)
		}
	}
	run := func(name string, want breaker.Outcome, err error, feed func(*stream)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStream()
				r := newRig(t, answer(s), breaker.Config{Policy: breaker.Policy{CallTimeout: timeout}})
				go feed(s)
				began := time.Now()
				resp, rtErr := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
				require.NoError(t, rtErr)
				_, readErr := io.ReadAll(resp.Body)
				assert.Equal(t, err, readErr)
				assert.LessOrEqual(t, time.Since(began), timeout)
				assert.Equal(t, []breaker.Outcome{want}, r.seen.said())
				assert.NoError(t, resp.Body.Close())
			})
		})
	}
	run("a slow body within it", breaker.Success, nil, func(s *stream) {
		time.Sleep(timeout - time.Second)
		_, _ = io.WriteString(s.feed, "at last")
		_ = s.feed.Close()
	})
	run("one that stalls", breaker.Failure, context.DeadlineExceeded, func(s *stream) {
		_, _ = io.WriteString(s.feed, "part")
	})
}

// Its deadline must not be left running when the body has ended.
func TestTheContextOfTheRequestEndsWithItsBody(t *testing.T) {
	for name, finish := range map[string]func(*http.Response){
		"read":   func(resp *http.Response) { _, _ = io.ReadAll(resp.Body) },
		"closed": func(resp *http.Response) { _ = resp.Body.Close() },
	} {
		for _, code := range []int{200, 404, 503} {
			var sent context.Context
			r := newRig(t, roundTrip(func(req *http.Request) (*http.Response, error) {
				sent = req.Context()
				return answer(code, text("why"))(req)
			}), breaker.Config{Policy: breaker.Policy{CallTimeout: time.Hour}})
			resp, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
			require.NoError(t, err)
			assert.NoError(t, sent.Err())
			finish(resp)
			assert.ErrorIs(t, sent.Err(), context.Canceled, "%d, %s", code, name)
		}
	}
}

func TestTheCallersDeadlineInTheBody(t *testing.T) {
	get := func(t *testing.T, s *stream) (rig, *http.Response) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		t.Cleanup(cancel)
		context.AfterFunc(ctx, func() {
			time.Sleep(time.Millisecond) // the connection is the last to hear of it
			_ = s.feed.CloseWithError(ctx.Err())
		})
		r := newRig(t, answer(200, s), breaker.Config{})
		resp, err := r.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, "http://x.test", nil))
		require.NoError(t, err)
		return r, resp
	}
	t.Run("a Failure while it waits for more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, resp := get(t, newStream())
			_, err := io.ReadAll(resp.Body)
			assert.Equal(t, context.DeadlineExceeded, err)
			assert.Equal(t, []breaker.Outcome{breaker.Failure}, r.seen.said())
		})
	})
	t.Run("no verdict while it does something else", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, _ := get(t, newStream())
			time.Sleep(2 * time.Second)
			synctest.Wait()
			assert.Equal(t, []breaker.Outcome{breaker.Ignored}, r.seen.said())
		})
	})
}

func TestTheTimeOfACallIsThatOfItsBodyToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream()
		r := newRig(t, answer(200, s), breaker.Config{})
		resp, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "http://x.test", nil))
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		_ = s.feed.Close()
		_, _ = io.ReadAll(resp.Body)
		assert.Equal(t, 3*time.Second, r.seen.elapsed)
	})
}
