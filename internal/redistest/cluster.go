package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// StartCluster starts a Redis Cluster of one server, which has all slots.
func StartCluster(t testing.TB, args ...string) *Server {
	t.Helper()
	s := startNode(t, args)
	c, ctx := s.Client(nil), context.Background()
	must(t, c.ClusterAddSlotsRange(ctx, 0, slots-1).Err())
	awaitNodes(t, []*Server{s}, "cluster_state:ok")
	return s
}

const slots = 16384

// A Cluster is a Redis Cluster of several masters, each with one replica.
type Cluster struct {
	Masters  []*Server // each with its share of the slots, in their order
	Replicas []*Server // of the master with the same index
}

// StartClusterOf starts a Cluster that finds out within timeout that one of its
// masters is gone.
func StartClusterOf(t testing.TB, masters int, timeout time.Duration) *Cluster {
	t.Helper()
	c, ctx := new(Cluster), context.Background()
	args := []string{"--cluster-node-timeout", fmt.Sprint(timeout.Milliseconds()),
		"--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}
	for range masters {
		c.Masters = append(c.Masters, startNode(t, args))
		c.Replicas = append(c.Replicas, startNode(t, args))
	}
	first := c.Masters[0].Client(nil)
	for i, s := range c.Masters {
		must(t, s.Client(nil).ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err())
	}
	for _, s := range c.Nodes() {
		host, port, _ := net.SplitHostPort(s.Addr)
		must(t, first.ClusterMeet(ctx, host, port).Err())
	}
	awaitNodes(t, c.Nodes(), fmt.Sprintf("cluster_known_nodes:%d", 2*masters))
	for i, s := range c.Replicas {
		id := c.Masters[i].nodeID(t)
		eventually(t, "a replica of its master", func() error { return s.Client(nil).ClusterReplicate(ctx, id).Err() })
	}
	awaitNodes(t, c.Nodes(), "cluster_state:ok")
	for _, s := range c.Replicas {
		eventually(t, "a replica in step", func() error { return linked(s) })
	}
	return c
}

// Nodes returns all servers, masters first.
func (c *Cluster) Nodes() []*Server {
	return append(append([]*Server(nil), c.Masters...), c.Replicas...)
}

// Addrs are where the nodes listen.
func (c *Cluster) Addrs() (addrs []string) {
	for _, s := range c.Nodes() {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Move moves the slot of key from one master to another, its keys one by one, as
// a resharding does while clients go on.
func (c *Cluster) Move(key string, from, to *Server) {
	t, ctx := from.t, context.Background()
	t.Helper()
	src, dst := from.Client(nil), to.Client(nil)
	slot := src.ClusterKeySlot(ctx, key).Val()
	srcID, dstID := from.nodeID(t), to.nodeID(t)
	host, port, _ := net.SplitHostPort(to.Addr)
	must(t, dst.Do(ctx, "cluster", "setslot", slot, "importing", srcID).Err())
	must(t, src.Do(ctx, "cluster", "setslot", slot, "migrating", dstID).Err())
	for range 1000 { // bounded: a slot here has a few keys
		keys, err := src.ClusterGetKeysInSlot(ctx, int(slot), 10).Result()
		must(t, err)
		if len(keys) == 0 {
			break
		}
		for _, k := range keys {
			must(t, src.Do(ctx, "migrate", host, port, k, 0, 5000).Err())
		}
	}
	for _, s := range []*Server{to, from} {
		must(t, s.Client(nil).Do(ctx, "cluster", "setslot", slot, "node", dstID).Err())
	}
	for _, s := range c.Nodes() { // one that dies before all know of it is not replaced
		node := s.Client(nil)
		eventually(t, "a slot's new master", func() error {
			//lint:ignore SA1019 Redis 6.2 does not know CLUSTER SHARDS
			ranges, err := node.ClusterSlots(ctx).Result()
			for _, r := range ranges {
				if int64(r.Start) <= slot && slot <= int64(r.End) && len(r.Nodes) > 0 && r.Nodes[0].ID == dstID {
					return nil
				}
			}
			return fmt.Errorf("%v %v", ranges, err)
		})
	}
}

// OwnerOf returns the master that has the slot of key.
func (c *Cluster) OwnerOf(key string) int {
	slot := c.Masters[0].Client(nil).ClusterKeySlot(context.Background(), key).Val()
	return int(slot) * len(c.Masters) / slots
}

func startNode(t testing.TB, args []string) *Server {
	t.Helper()
	return start(t, &Server{t: t, node: true, args: append([]string{"--cluster-enabled", "yes"}, args...)})
}

func (s *Server) nodeID(t testing.TB) string {
	t.Helper()
	id, err := s.Client(nil).ClusterMyID(context.Background()).Result()
	must(t, err)
	return id
}

// awaitNodes waits until every node says so of the cluster.
func awaitNodes(t testing.TB, nodes []*Server, what string) {
	t.Helper()
	for _, s := range nodes {
		c := s.Client(nil)
		eventually(t, what, func() error {
			info, err := c.ClusterInfo(context.Background()).Result()
			if err == nil && !strings.Contains(info, what) {
				err = errors.New(info)
			}
			return err
		})
	}
}

// linked says whether a replica has all that its master has.
func linked(s *Server) error {
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer c.Close()
	info, err := c.Info(context.Background(), "replication").Result()
	if err == nil && !strings.Contains(info, "master_link_status:up") {
		err = errors.New(info)
	}
	return err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
}

// eventually tries do until it works, at most half a minute.
func eventually(t testing.TB, what string, do func() error) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("redistest: %s: %v", what, err)
		}
	}
}
