package redistest

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// StartCluster starts a Redis Cluster of one server, which has all slots.
func StartCluster(t testing.TB, args ...string) *Server {
	t.Helper()
	_, bus, _ := net.SplitHostPort(freeAddr(t))
	s := Start(t, append([]string{"--cluster-enabled", "yes", "--cluster-port", bus}, args...)...)
	c := s.Client(nil)
	ctx := context.Background()
	if err := c.ClusterAddSlotsRange(ctx, 0, 16383).Err(); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		info, err := c.ClusterInfo(ctx).Result()
		if err == nil && strings.Contains(info, "cluster_state:ok") {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("redistest: the cluster is not ready: %v %s", err, info)
		}
	}
}
