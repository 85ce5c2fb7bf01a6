package breaker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// An answer that comes late, of a generation that is over, must not void what
// was counted since: a process's own streak opens on its very last failure.
func TestOvertakenAnswerDoesNotVoidOwnStreak(t *testing.T) {
	l, now := new(ledger), time.Now()
	before := l.epoch()
	l.saw(sight{generation: 1, recorded: true, healthy: true, changed: true, epoch: before}, nil)
	for range 4 {
		l.failed(1, now)
	}
	l.saw(sight{generation: 0, healthy: true, epoch: before}, nil)
	l.failed(1, now)
	e := l.evidence("p", now)
	assert.Equal(t, 5, e.Streak)
	assert.EqualValues(t, 1, e.Generation)

	l.saw(sight{generation: 0, healthy: true, epoch: l.epoch()}, nil)
	assert.Zero(t, l.evidence("p", now).Generation, "the record was lost")
}
