package bench

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/breakerkit/breaker"
)

// BenchmarkKeys has a million distinct keys pass through a store of 100,000,
// and reports the longest that one call took: no call pays for a walk through
// the table.
func BenchmarkKeys(b *testing.B) {
	b.Run("longest-of-a-million", func(b *testing.B) {
		succeed := func(context.Context) error { return nil }
		longest := time.Duration(0)
		for b.Loop() {
			store := breaker.NewMemoryStore(breaker.MemoryConfig{MaxKeys: 100_000})
			br, err := breaker.New(store, breaker.Config{})
			if err != nil {
				b.Fatal(err)
			}
			for i := range 1_000_000 {
				key := "tenant-" + strconv.Itoa(i)
				began := time.Now()
				if err := br.Execute(ctx, key, succeed); err != nil {
					b.Fatal(err)
				}
				longest = max(longest, time.Since(began))
			}
		}
		b.ReportMetric(float64(longest), "ns/op")
	})
}
