// Package redistest starts redis-server processes for tests.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Server is a redis-server on loopback that ends with its test.
type Server struct {
	Addr string

	t    testing.TB
	conf string // a file of settings, for a Sentinel; empty: none
	args []string
	node bool // of a Cluster
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start starts a redis-server that keeps nothing on disk, with more arguments
// ("--maxmemory", "2mb") if given. Without one on the PATH the test is
// skipped; with BREAKER_REQUIRE_REDIS=1 it fails.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, &Server{t: t, args: args})
}

func start(t testing.TB, s *Server) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("BREAKER_REQUIRE_REDIS") == "1" {
			t.Fatal("BREAKER_REQUIRE_REDIS=1, but there is no redis-server on the PATH")
		}
		t.Skip("no redis-server on the PATH: a test on a real server is skipped")
	}
	for range 5 { // another process may take the port in between
		if s.Addr = freeAddr(t); s.node {
			s.Addr = freeNodeAddr(t)
		}
		if s.launch() == nil {
			t.Cleanup(s.Kill)
			return s
		}
	}
	t.Fatal("redistest: redis-server does not start")
	return nil
}

// Durable are arguments of a server that keeps every write on disk before it
// answers, so that it knows all again after Kill and Restart.
func Durable(t testing.TB) []string {
	return []string{"--dir", t.TempDir(), "--appendonly", "yes", "--appendfsync", "always"}
}

// Client returns a client of the server with opts, which may be nil; it is
// closed when the test ends.
func (s *Server) Client(opts *redis.Options) *redis.Client {
	if opts == nil {
		opts = &redis.Options{}
	}
	opts.Addr = s.Addr
	c := redis.NewClient(opts)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Kill ends the server as kill -9 does. It may be called again.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Restart starts the server again on the same port, empty unless Durable was
// among its arguments. Kill it first.
func (s *Server) Restart() {
	s.t.Helper()
	for range 20 { // the port may take a moment to be free
		if s.launch() == nil {
			return
		}
	}
	s.t.Fatal("redistest: redis-server does not start again")
}

// Freeze stops the process (SIGSTOP): its connections stay, and nothing is answered.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets it go on (SIGCONT).
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("redistest: %v: %v", sig, err)
	}
}

// Commands returns how many commands of each name the server has run.
func (s *Server) Commands() map[string]int {
	s.t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer c.Close()
	info, err := c.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		s.t.Fatalf("redistest: commandstats: %v", err)
	}
	calls := make(map[string]int)
	for name, stats := range info["Commandstats"] {
		var n int
		if _, err := fmt.Sscanf(stats, "calls=%d", &n); err == nil {
			calls[name[len("cmdstat_"):]] = n
		}
	}
	return calls
}

// launch starts the process and waits, at most ten seconds, for it to answer.
func (s *Server) launch() error {
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	args := append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no",
		"--dir", s.t.TempDir(), "--loglevel", "warning"}, s.args...)
	if s.conf != "" {
		args = append([]string{s.conf, "--bind", "127.0.0.1", "--port", port}, s.args...)
	}
	s.cmd, s.done = exec.Command("redis-server", args...), make(chan struct{})
	if err := s.cmd.Start(); err != nil {
		close(s.done)
		return err
	}
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(s.cmd, s.done)

	deadline := time.After(10 * time.Second)
	for {
		if conn, err := net.DialTimeout("tcp", s.Addr, time.Second); err == nil {
			_, _ = conn.Write([]byte("*1\r\n$4\r\nPING\r\n"))
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			n, err := conn.Read(make([]byte, 64))
			_ = conn.Close()
			if err == nil && n > 0 {
				return nil
			}
		}
		select {
		case <-s.done:
			return fmt.Errorf("redis-server ended: %v", s.cmd.ProcessState)
		case <-deadline:
			s.Kill()
			return fmt.Errorf("redis-server does not answer on %s", s.Addr)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

// freeNodeAddr is freeAddr for a node of a Cluster: before Redis 7, the port on
// which nodes speak with each other can't be chosen, it is 10,000 above.
func freeNodeAddr(t testing.TB) string {
	t.Helper()
	for range 1000 {
		addr := freeAddr(t)
		_, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n+10000))); err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatal("redistest: no port is free with that of its bus")
	return ""
}
