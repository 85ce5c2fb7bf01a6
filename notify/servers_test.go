package notify

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// A safeBuffer is a log that is read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// to returns a Notifier with one real channel, that tries fast.
func to(t *testing.T, c Channel, log io.Writer) *Notifier {
	t.Helper()
	if log == nil {
		log = io.Discard
	}
	n, err := New(Config{Channels: []Channel{c}, Group: -1, Backoff: 10 * time.Millisecond, Timeout: 500 * time.Millisecond,
		CloseTimeout: 20 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

var opened = breaker.Transition{
	Key: "stripe", To: breaker.StateOpen, Generation: 7, At: time.Unix(1_800_000_000, 0),
	Cause: breaker.CauseConsecutiveFailures, Counts: breaker.Counts{ConsecutiveFailures: 5}, Instance: "web-1",
}

// A receiver is a webhook's server: it does what answer says for each try, and
// keeps what came.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	headers []http.Header
	bodies  [][]byte
}

func newReceiver(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, try int)) *receiver {
	rec := new(receiver)
	rec.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		rec.mu.Lock()
		rec.headers, rec.bodies = append(rec.headers, r.Header), append(rec.bodies, body)
		try := len(rec.bodies)
		rec.mu.Unlock()
		answer(w, r, try)
	}))
	t.Cleanup(rec.Close)
	return rec
}

func TestAWebhookThatFailsStallsAndRecoversGetsTheMessageSigned(t *testing.T) {
	rec := newReceiver(t, func(w http.ResponseWriter, r *http.Request, try int) {
		switch try {
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			<-r.Context().Done() // stalls, until the client has given up
		case 3:
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Close()
		case 4:
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	n := to(t, Channel{URL: rec.URL + "/hook?x=1", Secret: "s3cret"}, nil)
	n.Transitioned(opened)
	require.NoError(t, n.Close())
	require.Equal(t, []ChannelStats{{Name: "http[0]", Sent: 1}}, n.Stats())
	require.Len(t, rec.bodies, 5)
	for i, body := range rec.bodies {
		assert.NoError(t, Verify("s3cret", rec.headers[i], body, time.Minute))
		assert.Equal(t, rec.headers[0].Get(DeliveryHeader), rec.headers[i].Get(DeliveryHeader))
	}
	header, body := rec.headers[4], rec.bodies[4]
	assert.Equal(t, "application/json", header.Get("Content-Type"))
	assert.Error(t, Verify("another", header, body, time.Minute))
	assert.Error(t, Verify("", header, body, time.Minute))
	assert.Error(t, Verify("s3cret", header, append(body, ' '), time.Minute))
	assert.ErrorContains(t, Verify("s3cret", header, body, -time.Minute), "too far from now")
	mac := hmac.New(sha256.New, []byte("s3cret"))
	mac.Write([]byte(header.Get(TimestampHeader) + "." + string(body)))
	assert.Equal(t, "sha256="+hex.EncodeToString(mac.Sum(nil)), header.Get(SignatureHeader))
	forged := header.Clone()
	forged.Set(TimestampHeader, strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))
	assert.ErrorContains(t, Verify("s3cret", forged, body, 2*time.Hour), "signature")
	forged.Set(TimestampHeader, "noon")
	assert.ErrorContains(t, Verify("s3cret", forged, body, time.Minute), "Unix seconds")

	var payload map[string]any
	require.NoError(t, json.Unmarshal(body, &payload))
	assert.EqualValues(t, 1, payload["version"])
	assert.Equal(t, header.Get(DeliveryHeader), payload["id"])
	assert.Equal(t, "Circuit stripe opened", payload["subject"])
	event := payload["events"].([]any)[0].(map[string]any)
	assert.Equal(t, "opened", event["kind"])
	assert.Equal(t, "stripe", event["key"])
	transition := event["transition"].(map[string]any)
	assert.Equal(t, "open", transition["to"])
	assert.Equal(t, "consecutive_failures", transition["cause"])
	assert.EqualValues(t, 5, transition["counts"].(map[string]any)["consecutive_failures"])
}

func TestARefusedWebhookIsNotTriedAgainAndNoRedirectIsFollowed(t *testing.T) {
	for _, code := range []int{http.StatusNotFound, http.StatusUnauthorized, http.StatusTemporaryRedirect} {
		var elsewhere atomic.Int32
		other := newReceiver(t, func(http.ResponseWriter, *http.Request, int) { elsewhere.Add(1) })
		rec := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Location", other.URL)
			w.WriteHeader(code)
		})
		n := to(t, Channel{URL: rec.URL, Secret: "s"}, nil)
		n.Transitioned(opened)
		require.NoError(t, n.Close())
		assert.Len(t, rec.bodies, 1, code)
		assert.Zero(t, elsewhere.Load(), code)
		assert.EqualValues(t, 1, n.Stats()[0].Failed, code)
	}
}

// A mailServer speaks as much SMTP as a message needs. Each connection is
// treated as trouble says: "" (well), "stall", "busy" or "drop".
type mailServer struct {
	net.Listener
	mu      sync.Mutex
	trouble []string // of the connections to come
	conns   []net.Conn
	mails   []string
}

func newMailServer(t *testing.T, trouble ...string) *mailServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &mailServer{Listener: l, trouble: trouble}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			what := ""
			if len(s.trouble) > 0 {
				what, s.trouble = s.trouble[0], s.trouble[1:]
			}
			s.mu.Unlock()
			serving.Go(func() { s.serve(conn, what) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		for _, conn := range s.conns {
			conn.Close()
		}
		s.mu.Unlock()
		serving.Wait()
	})
	return s
}

func (s *mailServer) serve(conn net.Conn, trouble string) {
	defer conn.Close()
	say := func(line string) { _, _ = io.WriteString(conn, line+"\r\n") }
	in := bufio.NewScanner(conn)
	switch trouble {
	case "stall":
		in.Scan() // nothing is said; the client waits for a greeting
		return
	case "busy":
		say("421 try again later")
		return
	case "drop":
		return
	}
	say("220 ready")
	var mail strings.Builder
	for inData := false; in.Scan(); {
		line := in.Text()
		command := strings.ToUpper(line)
		switch {
		case inData && line == ".":
			inData = false
			s.mu.Lock()
			s.mails = append(s.mails, mail.String())
			s.mu.Unlock()
			mail.Reset()
			say("250 taken")
		case inData:
			mail.WriteString(line + "\n")
		case strings.HasPrefix(command, "EHLO"):
			say("250 localhost")
		case command == "DATA":
			inData = true
			say("354 go on")
		case command == "QUIT":
			say("221 bye")
			return
		default:
			say("250 fine")
		}
	}
}

func TestAMailServerThatFailsStallsAndRecoversGetsTheMail(t *testing.T) {
	server := newMailServer(t, "busy", "stall", "drop")
	n := to(t, Channel{URL: "smtp://" + server.Addr().String() + "/?from=breaker@example.com&to=ops@example.com,dev@example.com"}, nil)
	n.Transitioned(opened)
	require.NoError(t, n.Close())
	require.Equal(t, []ChannelStats{{Name: "smtp[0]", Sent: 1}}, n.Stats())
	server.mu.Lock()
	defer server.mu.Unlock()
	require.Len(t, server.mails, 2, "one for each address")
	assert.Contains(t, server.mails[0], "Subject: [breaker] Circuit stripe opened\n")
	assert.Contains(t, server.mails[0], "To: ops@example.com\n")
	assert.Contains(t, server.mails[0], "\nstripe opened: 5 failures in a row; seen by web-1\n")
}

// A server that never answers holds a few goroutines and no more.
func TestTriesLeftBehindAreBounded(t *testing.T) {
	server := newMailServer(t, strings.Split(strings.Repeat("stall ", 30), " ")...)
	n := to(t, Channel{URL: "smtp://" + server.Addr().String() + "/?from=a@example.com&to=b@example.com"}, nil)
	for range 2 {
		n.Transitioned(opened)
	}
	require.NoError(t, n.Close())
	assert.EqualValues(t, 2, n.Stats()[0].Failed)
	server.mu.Lock()
	defer server.mu.Unlock()
	assert.Len(t, server.conns, maxLeft)
}

// A roundTripper stands for the servers of the chat services.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func insteadOfTheInternet(t *testing.T, f roundTripper) {
	before := http.DefaultTransport
	http.DefaultTransport = f
	t.Cleanup(func() { http.DefaultTransport = before })
}

var chats = map[string]struct{ url, host string }{
	"slack":    {"slack://hook:T0123456B-B01234567-AbCdEfGhIjKlMnOpQrStUvWx@webhook", "hooks.slack.com"},
	"discord":  {"discord://toKen-of_Discord0123456789@123456789012345678", "discord.com"},
	"telegram": {"telegram://110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw0@telegram?chats=@secretchannel", "api.telegram.org"},
}

func TestChatsGetTheMessage(t *testing.T) {
	for name, chat := range chats {
		t.Run(name, func(t *testing.T) {
			var got atomic.Value
			insteadOfTheInternet(t, func(r *http.Request) (*http.Response, error) {
				body, err := io.ReadAll(r.Body)
				got.Store(r.URL.Host + " " + string(body))
				answer, code := "ok", http.StatusOK
				switch name {
				case "discord":
					answer, code = "", http.StatusNoContent
				case "telegram":
					answer = `{"ok":true,"result":{}}`
				}
				return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
					Body: io.NopCloser(strings.NewReader(answer)), Request: r}, err
			})
			n := to(t, Channel{URL: chat.url}, nil)
			n.Transitioned(opened)
			require.NoError(t, n.Close())
			require.Equal(t, []ChannelStats{{Name: name + "[0]", Sent: 1}}, n.Stats())
			assert.Contains(t, got.Load(), chat.host+" ")
			assert.Contains(t, got.Load(), "Circuit stripe opened")
			assert.Contains(t, got.Load(), "5 failures in a row")
		})
	}
}

// A service that says no, or that can't be reached, has not got the message.
func TestAChatThatFailsIsNotTakenForSuccess(t *testing.T) {
	for name, chat := range chats {
		for what, answer := range map[string]func(*http.Request) (*http.Response, error){
			"unreachable": func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
			"refused": func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}},
					Body: io.NopCloser(strings.NewReader(`{"ok":false,"description":"no"}`)), Request: r}, nil
			},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				insteadOfTheInternet(t, answer)
				n := to(t, Channel{URL: chat.url}, nil)
				n.Transitioned(opened)
				require.NoError(t, n.Close())
				assert.Equal(t, []ChannelStats{{Name: name + "[0]", Failed: 1}}, n.Stats())
			})
		}
	}
}

// A message that reached one of two chats is tried again for the other alone.
func TestTelegramTriesAgainOnlyWhereItFailed(t *testing.T) {
	var mu sync.Mutex
	got := make(map[string]int)
	insteadOfTheInternet(t, func(r *http.Request) (*http.Response, error) {
		var body struct {
			ChatID string `json:"chat_id"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		mu.Lock()
		defer mu.Unlock()
		if got[body.ChatID]++; body.ChatID == "-2" && got["-2"] < 3 {
			return nil, io.ErrUnexpectedEOF
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"ok":true}`)), Request: r}, nil
	})
	n := to(t, Channel{URL: "telegram://1:token@telegram?chats=@one,-2"}, nil)
	n.Transitioned(opened)
	require.NoError(t, n.Close())
	assert.Equal(t, map[string]int{"@one": 1, "-2": 3}, got)
	assert.EqualValues(t, 1, n.Stats()[0].Sent)
}

// What goes wrong is logged, and nothing of the URL but its scheme.
func TestNoLogLineAndNoErrorShowsASecret(t *testing.T) {
	secrets := []string{
		"T0123456B", "B01234567", "AbCdEfGhIjKlMnOpQrStUvWx", "toKen-of_Discord0123456789", "toKen", "123456789012345678",
		"110201543", "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw0", "secretchannel", "hunter22", "p%40ss", "p@ss", "s3cret-key", "path-secret", "query-secret",
	}
	insteadOfTheInternet(t, func(r *http.Request) (*http.Response, error) {
		// The client wraps this in an error with the whole URL.
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: io.ErrUnexpectedEOF}
	})
	var log safeBuffer
	urls := []string{"smtp://hunter22:p%40ss@127.0.0.1:1/?from=a@example.com&to=b@example.com",
		"https://hunter22:p%40ss@hooks.example.com/path-secret?token=query-secret"}
	for _, chat := range chats {
		urls = append(urls, chat.url)
	}
	for _, u := range urls {
		n := to(t, Channel{URL: u, Secret: "s3cret-key"}, &log)
		n.Transitioned(opened)
		require.NoError(t, n.Close())
		require.EqualValues(t, 1, n.Stats()[0].Failed)
	}
	text := log.String()
	assert.Equal(t, len(urls), strings.Count(text, "gave a message up"))
	assert.Contains(t, text, "unexpected EOF", "it does say what went wrong")
	assert.Contains(t, text, "connection refused")

	for _, u := range []string{
		"nowhere://hunter22:p%40ss@host", "hunter22", "https://hunter22:p%40ss@ho st/", "slack://hook:hunter22@path-secret",
		"telegram://hunter22@telegram?chats=secretchannel", "smtp://hunter22:p%40ss@host:99999/", "discord://hunter22@/path-secret?query-secret=1",
	} {
		_, err := New(Config{Channels: []Channel{{URL: u, Secret: "s3cret-key"}}})
		require.ErrorIs(t, err, breaker.ErrConfig, u)
		assert.ErrorContains(t, err, "Channels[0]")
		text += err.Error() + "\n"
	}
	for _, secret := range secrets {
		assert.NotContains(t, text, secret)
	}
}

func TestPiecesOfTheURLAndOtherURLsAreNotShown(t *testing.T) {
	u, err := url.Parse("slack://hook:T0123456B-B01234567-AbCdEfGhIjKlMnOpQrStUvWx@webhook")
	require.NoError(t, err)
	assert.Equal(t, "***-*** refused for *** in ***", newRedactor(u).text("T0123456B-B01234567 refused for AbCdEfGhIjKlMnOpQrStUvWx in webhook"))
	assert.Equal(t, `Get "[url]": no such host`, newRedactor(u).text(`Get "https://user:pw@elsewhere.example.com/a?sig=b": no such host`))
}

func TestWrongFieldsAreNamed(t *testing.T) {
	hook := []Channel{{URL: "https://example.com", Secret: "s"}}
	for field, cfg := range map[string]Config{
		"Channels is empty": {},
		"needs a Secret":    {Channels: []Channel{{URL: "https://example.com"}}},
		"no host":           {Channels: []Channel{{URL: "https:///x", Secret: "s"}}},
		"Queue is -1":       {Channels: hook, Queue: -1},
		"Attempts is -1":    {Channels: hook, Attempts: -1},
		"Timeout is -1ns":   {Channels: hook, Timeout: -1},
		"ChronicWindow":     {Channels: hook, ChronicWindow: -1},
		"Kinds[1]":          {Channels: hook, Kinds: []Kind{Opened, "melted"}},
	} {
		_, err := New(cfg)
		assert.ErrorIs(t, err, breaker.ErrConfig, field)
		assert.ErrorContains(t, err, field)
	}
	n, err := New(Config{Channels: []Channel{{URL: "https://example.com", Secret: "s", Name: "ops"}}})
	require.NoError(t, err)
	require.NoError(t, n.Close())
	assert.Equal(t, "ops", n.Stats()[0].Name)
}
