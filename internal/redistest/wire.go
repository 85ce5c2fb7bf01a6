package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Listen calls handle, on a goroutine of its own, with each connection to the
// address it returns, and closes the connection after it. It ends with the test.
func Listen(t testing.TB, handle func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return l.Addr().String()
}

// Fake is a server that greets like one that speaks RESP3, and answers every
// other command with the bytes that answer returns.
func Fake(t testing.TB, answer func(words []string) string) (addr string) {
	t.Helper()
	return Listen(t, func(conn net.Conn) {
		for r := bufio.NewReader(conn); ; {
			words, _, err := readCommand(r)
			if err != nil {
				return
			}
			reply := "+OK\r\n"
			switch {
			case words[0] == "hello":
				reply = "%1\r\n$5\r\nproto\r\n:3\r\n"
			case !greeting[words[0]]:
				reply = answer(words)
			}
			if _, err := io.WriteString(conn, reply); err != nil {
				return
			}
		}
	})
}

// greeting has the commands that a client sends of its own accord.
var greeting = map[string]bool{"hello": true, "client": true, "auth": true, "select": true,
	"ping": true, "command": true, "cluster": true}

// A Fate is what a Proxy does with a command.
type Fate int

const (
	Pass        Fate = iota
	LoseReply        // the server runs it; then the connection ends, before the reply
	Repeat           // the server gets it twice; the client hears of one
	Refuse           // an error is the answer; the server hears nothing
	CutReply         // the server runs it; then the connection ends, within the reply
	LoseCommand      // the connection ends; the server hears nothing
)

// A Proxy stands between clients and a server. It counts what the clients
// send, and does with it what its test says.
type Proxy struct {
	Addr string

	server string
	mu     sync.Mutex
	fate   func(words []string) Fate
	delay  func(words []string) time.Duration
	rate   int
	sent   map[string]int
}

// NewProxy starts a proxy to the server at addr; it ends with the test.
func NewProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	p := &Proxy{server: addr, sent: make(map[string]int)}
	p.Addr = Listen(t, p.serve)
	return p
}

// Decide has fate decide about each command from now on; its name is in lower
// case. nil: all pass.
func (p *Proxy) Decide(fate func(words []string) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fate = fate
}

// Delay holds each command back by so much from now on, each connection for
// itself: what one client sent first may arrive last. nil: none.
func (p *Proxy) Delay(delay func(words []string) time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// Throttle lets at most so many bytes of replies through in a second, each
// connection for itself. 0: all.
func (p *Proxy) Throttle(bytesPerSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = bytesPerSecond
}

// hold waits as long as Delay says.
func (p *Proxy) hold(words []string) {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay != nil {
		time.Sleep(delay(words))
	}
}

// pace waits as long as n bytes of a reply take.
func (p *Proxy) pace(n int) {
	p.mu.Lock()
	rate := p.rate
	p.mu.Unlock()
	if rate > 0 {
		time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
	}
}

// Sent returns how many commands of each name have come since it was last
// called, those of a client's greeting aside.
func (p *Proxy) Sent() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := p.sent
	p.sent = make(map[string]int)
	return sent
}

func (p *Proxy) decide(words []string) Fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !greeting[words[0]] {
		p.sent[words[0]]++
	}
	if p.fate == nil {
		return Pass
	}
	return p.fate(words)
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var lose, cut atomic.Bool
	go func() {
		defer client.Close()
		buf := make([]byte, 16<<10)
		for {
			n, err := server.Read(buf)
			if err != nil || lose.Load() {
				return
			}
			if cut.Load() {
				_, _ = client.Write(buf[:n/2])
				return
			}
			p.pace(n)
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	for r := bufio.NewReader(client); ; {
		words, raw, err := readCommand(r)
		if err != nil {
			return
		}
		p.hold(words)
		switch p.decide(words) {
		case Refuse: // in its place among the replies, unless the client pipelines
			if _, err := io.WriteString(client, "-ERR unknown command '"+words[0]+"'\r\n"); err != nil {
				return
			}
			continue
		case LoseReply:
			lose.Store(true)
		case CutReply:
			cut.Store(true)
		case LoseCommand:
			return
		case Repeat:
			if err := p.deliver(raw); err != nil {
				return
			}
		}
		if _, err := server.Write(raw); err != nil {
			return
		}
	}
}

// deliver sends a command over a connection of its own, and waits until it has run.
func (p *Proxy) deliver(raw []byte) error {
	conn, err := net.Dial("tcp", p.server)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(raw); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// readCommand reads a request: its words, of which the first is in lower case,
// and its bytes.
func readCommand(r *bufio.Reader) (words []string, raw []byte, err error) {
	number := func(sign byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		raw = append(raw, line...)
		n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
		if line[0] != sign || err != nil || n < 0 {
			return 0, fmt.Errorf("redistest: %q begins no request", line)
		}
		return n, nil
	}
	count, err := number('*')
	for i := 0; i < count && err == nil; i++ {
		var size int
		if size, err = number('$'); err != nil {
			break
		}
		word := make([]byte, size+2)
		if _, err = io.ReadFull(r, word); err != nil {
			break
		}
		raw = append(raw, word...)
		words = append(words, string(word[:size]))
	}
	if err == nil && len(words) == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, nil, err
	}
	words[0] = strings.ToLower(words[0])
	return words, raw, nil
}
