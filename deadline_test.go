package breaker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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
		assert.Empty(t, d.steps)
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
