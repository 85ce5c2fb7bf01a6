package breaker

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each ends at its own deadline, whatever the order of their deadlines and
// whichever the one timer was set for.
func TestStepsOfOneTimerEndEachAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadlines
		began := time.Now()
		ended := make(map[time.Duration]time.Duration)
		results := make(chan func())
		begin := func(limit time.Duration) {
			c, at := d.begin(t.Context(), limit), time.Now()
			deadline, ok := c.Deadline()
			assert.True(t, ok)
			assert.Equal(t, at.Add(limit), deadline)
			assert.NoError(t, c.Err())
			go func() {
				<-c.Done()
				assert.Equal(t, context.DeadlineExceeded, c.Err())
				took := time.Since(at)
				results <- func() { ended[limit] = took }
			}()
		}
		limits := []time.Duration{100, 30, 70, 10, 100 * 1000}
		for _, limit := range limits {
			begin(limit * time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond) // the timer is set for another by now
		begin(5 * time.Millisecond)
		begin(300 * time.Millisecond)
		for range len(limits) + 2 {
			(<-results)()
		}
		assert.Equal(t, 100*time.Second, time.Since(began))
		for limit, took := range ended {
			assert.Equal(t, limit, took)
		}
		assert.Len(t, ended, len(limits)+2)
		assert.Nil(t, d.first, "none is under way")
		assert.Nil(t, d.last)
		assert.Zero(t, d.due, "no timer is left")
	})
}

func TestAStepThatIsOverEndsItsContextForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type name struct{}
		var d deadlines
		c := d.begin(context.WithValue(t.Context(), name{}, "k"), 100*time.Millisecond)
		child, cancel := context.WithTimeout(c, time.Hour)
		defer cancel()
		assert.Equal(t, "k", child.Value(name{}))
		deadline, _ := child.Deadline()
		assert.Equal(t, c.deadline, deadline)
		d.end(c)
		synctest.Wait()
		assert.Equal(t, context.Canceled, c.Err())
		assert.Equal(t, context.Canceled, child.Err())
		time.Sleep(time.Second)
		assert.Equal(t, context.Canceled, c.Err())
		assert.True(t, c.late())
		d.end(c)

		late := d.begin(t.Context(), 100*time.Millisecond)
		time.Sleep(time.Second)
		d.end(late)
		assert.Equal(t, context.DeadlineExceeded, late.Err())
	})
}

// Many begin, are over and are late in any order.
func TestStepsAreKeptInTheOrderOfTheirDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadlines
		underWay := make(map[*stepContext]bool)
		for range 2000 {
			switch rand.N(4) {
			case 0:
				time.Sleep(rand.N(20 * time.Millisecond))
				synctest.Wait()
			case 1:
				for c := range underWay {
					d.end(c)
					break
				}
			default:
				underWay[d.begin(t.Context(), 1+rand.N(100*time.Millisecond))] = true
			}
			for c := range underWay {
				if c.Err() == nil {
					require.False(t, c.late())
					continue
				}
				require.Equal(t, c.late(), c.Err() == context.DeadlineExceeded)
				delete(underWay, c)
			}
			d.mu.Lock() // the timer may fire once more, with nothing to end
			kept := 0
			for c, before := d.first, (*stepContext)(nil); c != nil; c, before = c.after, c {
				require.Same(t, before, c.before)
				require.True(t, underWay[c])
				require.True(t, before == nil || !c.deadline.Before(before.deadline))
				require.False(t, d.due.After(c.deadline))
				kept++
			}
			d.mu.Unlock()
			require.Len(t, underWay, kept)
		}
	})
}
