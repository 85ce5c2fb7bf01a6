package breakerconfig_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerconfig"
)

func Example() {
	path, cleanUp := exampleFile("circuits:\n  stripe:\n    consecutive_failures: 3\n")
	defer cleanUp()

	settings, err := breakerconfig.Load(path) // and the environment over it
	if err != nil {
		log.Fatal(err)
	}
	var store breaker.Store = breaker.NewMemoryStore(breaker.MemoryConfig{})
	if settings.RedisAddress != "" {
		client := redis.NewClient(&redis.Options{Addr: settings.RedisAddress})
		defer client.Close()
		store = breaker.NewRedisStore(client, settings.Redis)
	}
	b, err := breaker.New(store, settings.Config)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()

	snap, err := b.Snapshot(context.Background(), "stripe")
	fmt.Println(snap.Policy.ConsecutiveFailures, snap.Policy.Cooldown, err)
	// Output: 3 1m0s <nil>
}

func ExampleWatch() {
	path, cleanUp := exampleFile("default: {consecutive_failures: 3}\n")
	defer cleanUp()
	b, err := breaker.New(breaker.NewMemoryStore(breaker.MemoryConfig{}), breaker.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()

	ctx, stop := context.WithCancel(context.Background())
	reports, ended := make(chan error), make(chan error)
	go func() {
		ended <- breakerconfig.Watch(ctx, path, b, func(err error) { reports <- err })
	}()

	threshold := func() int {
		snap, _ := b.Snapshot(ctx, "stripe")
		return snap.Policy.ConsecutiveFailures
	}
	fmt.Println(<-reports, threshold())
	rewrite(path, "default: {consecutive_failures: 7}\n")
	fmt.Println(<-reports, threshold())
	rewrite(path, "default: {consecutive_failures: many}\n")
	fmt.Println(<-reports != nil, threshold())
	stop()
	fmt.Println(<-ended)
	// Output:
	// <nil> 3
	// <nil> 7
	// true 7
	// <nil>
}

func ExampleParse_mistakes() {
	_, err := breakerconfig.Parse("breaker.yaml", []byte(`
default:
  cooldown: 30
circuits:
  stripe:
    failure_rate: 50
    treshold: 3
`), []string{"BREAKER_DEFAULT_COOLDWN=30s"})
	fmt.Println(err)
	// Output:
	// breakerconfig: breaker.yaml:3: default.cooldown: 30 has no unit; a duration is written as 30s, 1m30s or 100ms
	// breakerconfig: breaker.yaml:6: circuits.stripe.failure_rate: is 50: must be within 0 and 1
	// breakerconfig: breaker.yaml:7: circuits.stripe.treshold: unknown field
	// breakerconfig: BREAKER_DEFAULT_COOLDWN: matches no setting
}

func exampleFile(text string) (path string, cleanUp func()) {
	dir, err := os.MkdirTemp("", "breakerconfig")
	if err != nil {
		log.Fatal(err)
	}
	path = filepath.Join(dir, "breaker.yaml")
	rewrite(path, text)
	return path, func() { _ = os.RemoveAll(dir) }
}

// rewrite replaces the file as a whole, as programs that write one should.
func rewrite(path, text string) {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		log.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		log.Fatal(err)
	}
}
