package prombreaker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/redistest"
	"github.com/breakerkit/breaker/prombreaker"
)

// A client on a real server heeds no context: it waits for a frozen one as
// long as its own timeouts say, and the scrape does not.
func TestAScrapeOfAFrozenServerEnds(t *testing.T) {
	server := redistest.Start(t)
	p := join(t, breaker.NewRedisStore(server.Client(nil), breaker.RedisConfig{}), prombreaker.Config{ScrapeTimeout: 300 * time.Millisecond}, breaker.Policy{})
	gather := func() map[string]float64 {
		values := make(map[string]float64)
		families, err := p.registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "breaker_circuit_state" {
					values[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
				} else {
					values[f.GetName()] = m.GetGauge().GetValue()
				}
			}
		}
		return values
	}
	p.calls(1, "stripe", nil)
	assert.Eventually(t, func() bool { p.calls(1, "stripe", nil); return gather()["breaker_view_listening"] == 1 },
		20*time.Second, time.Millisecond)
	p.calls(1, "stripe", nil)
	got := gather()
	assert.EqualValues(t, 1, got["breaker_views"])
	assert.Positive(t, got["breaker_view_staleness_seconds"])
	p.calls(5, "stripe", errDown)
	got = gather()
	assert.EqualValues(t, 1, got["stripe open"])
	assert.EqualValues(t, 1, got["breaker_scrape_complete"])

	server.Freeze()
	ended := make(chan map[string]float64)
	go func() { ended <- gather() }()
	select {
	case got := <-ended:
		assert.NotContains(t, got, "stripe open")
		assert.Zero(t, got["breaker_scrape_complete"])
	case <-time.After(20 * time.Second):
		require.Fail(t, "the scrape hangs with the server")
	}
	server.Thaw()
	assert.Eventually(t, func() bool { return gather()["stripe open"] == 1 }, 20*time.Second, 50*time.Millisecond)
}
