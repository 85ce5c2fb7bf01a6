package bench

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker/internal/redistest"
)

// BenchmarkAnnounce is how long another process takes to hear of a change, from
// the writer's command on, in the ways that were weighed for it. The writer's
// round trip is part of it.
func BenchmarkAnnounce(b *testing.B) {
	server := redistest.Start(b)
	client := server.Client(&redis.Options{Protocol: 2})
	const key, channel = "breaker:{stripe}", "breaker:changes"
	published := func(command string) func(int) error {
		script := redis.NewScript("redis.call('HSET', KEYS[1], 'a', ARGV[1]); redis.call('" + command + "', ARGV[2], KEYS[1]); return 1")
		return func(i int) error { return script.Run(ctx, client, []string{key}, i, channel).Err() }
	}
	written := func(i int) error { return client.HSet(ctx, key, "a", i).Err() }

	for _, way := range []struct {
		name   string
		listen func() *redis.PubSub
		change func(i int) error
	}{
		{"pubsub", func() *redis.PubSub { return client.Subscribe(ctx, channel) }, published("PUBLISH")},
		{"sharded", func() *redis.PubSub { return client.SSubscribe(ctx, channel) }, published("SPUBLISH")},
		{"tracking", nil, written},
		{"tracking-broadcast", nil, written},
	} {
		b.Run(way.name, func(b *testing.B) {
			listen := way.listen
			var reader *redis.Conn
			if listen == nil {
				listen = func() *redis.PubSub { return client.Subscribe(ctx, "__redis__:invalidate") }
			}
			sub := listen()
			defer sub.Close()
			if _, err := sub.Receive(ctx); err != nil {
				b.Fatal(err)
			}
			if way.listen == nil {
				reader = client.Conn()
				defer reader.Close()
				defer reader.Do(ctx, "client", "tracking", "off") // the connection goes back to the pool
				args := []any{"client", "tracking", "on", "redirect", listenerID(b, client)}
				if way.name == "tracking-broadcast" {
					args = append(args, "bcast", "prefix", "breaker:")
				}
				if err := reader.Do(ctx, args...).Err(); err != nil {
					b.Fatal(err)
				}
			}
			for i := 0; b.Loop(); i++ {
				if way.name == "tracking" { // told once for each read
					if err := reader.HGet(ctx, key, "a").Err(); err != nil && err != redis.Nil {
						b.Fatal(err)
					}
				}
				if err := way.change(i); err != nil {
					b.Fatal(err)
				}
				if _, err := sub.Receive(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// listenerID is the id of the one connection that subscribes.
func listenerID(b *testing.B, client *redis.Client) string {
	list, err := client.Do(ctx, "client", "list", "type", "pubsub").Text()
	if err != nil {
		b.Fatal(err)
	}
	id := regexp.MustCompile(`^id=(\d+)`).FindStringSubmatch(list)
	if id == nil {
		b.Fatal(fmt.Errorf("no listener in %q", list))
	}
	return id[1]
}
