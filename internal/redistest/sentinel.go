package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Sentinels is a master and its replica, watched by three Sentinels.
type Sentinels struct {
	Name            string // what the Sentinels call the master
	Master, Replica *Server
	Watchers        []*Server
}

// StartSentinels starts them. A master that does not answer for timeout is
// replaced.
func StartSentinels(t testing.TB, timeout time.Duration) *Sentinels {
	t.Helper()
	s := &Sentinels{Name: "circuits"}
	quick := []string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}
	s.Master = Start(t, quick...)
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	s.Replica = Start(t, append([]string{"--replicaof", host, port}, quick...)...)
	eventually(t, "a replica in step", func() error { return linked(s.Replica) })
	for range 3 {
		conf := filepath.Join(t.TempDir(), "sentinel.conf")
		text := fmt.Sprintf("sentinel monitor %s %s %s 2\nsentinel down-after-milliseconds %s %d\n"+
			"sentinel failover-timeout %s %d\ndir %q\nloglevel warning\n",
			s.Name, host, port, s.Name, timeout.Milliseconds(), s.Name, 10*timeout.Milliseconds(), filepath.Dir(conf))
		must(t, os.WriteFile(conf, []byte(text), 0o600))
		s.Watchers = append(s.Watchers, start(t, &Server{t: t, conf: conf, args: []string{"--sentinel"}}))
	}
	for _, w := range s.Watchers {
		c := w.Client(nil)
		eventually(t, "Sentinels that know all", func() error {
			info, err := c.Info(context.Background(), "sentinel").Result()
			if err == nil && !strings.Contains(info, "slaves=1,sentinels=3") {
				err = fmt.Errorf("%s", info)
			}
			return err
		})
	}
	return s
}

// Addrs are where the Sentinels listen.
func (s *Sentinels) Addrs() (addrs []string) {
	for _, w := range s.Watchers {
		addrs = append(addrs, w.Addr)
	}
	return addrs
}
