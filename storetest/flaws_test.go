package storetest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// judgedBy is a store that judges by another policy than it was given.
func judgedBy(policy func(p *breaker.Policy), breaks ...string) flaw {
	return flaw{policy: policy, breaks: breaks}
}

// deaf is a store that does not hear of some results.
func deaf(outcome breaker.Outcome, breaks ...string) flaw {
	return flaw{breaks: breaks, reported: func(_ jsonStore, _ string, _ breaker.Policy, _ *breaker.Permit, r *breaker.Result) bool {
		return r.Outcome == outcome
	}}
}

// spoiling is a store that saves something else than it should.
func spoiling(wrote func(before, after *breaker.Circuit), breaks ...string) flaw {
	return flaw{wrote: wrote, breaks: breaks}
}

// forgetting is a store whose history has no events of a kind.
func forgetting(kind breaker.EventKind, breaks ...string) flaw {
	return flaw{breaks: breaks, history: func(events []breaker.Event) []breaker.Event {
		return slices.DeleteFunc(events, func(e breaker.Event) bool { return e.Kind == kind })
	}}
}

// misnaming is a store that takes some keys for others.
func misnaming(key func(string) string) flaw {
	return flaw{key: key, breaks: []string{"KeysAreIndependentWhateverTheirBytes", "KeysListsEachCircuitOnceWithItsVeryBytes"}}
}

// flaws are stores that must not pass, and the checks that must find out.
var flaws = map[string]flaw{
	// Opening.
	"never opens": deaf(breaker.Failure, "ConsecutiveFailuresOpenAtExactlyTheThreshold",
		"WindowFailuresCountExactlyOneWindow", "FailureRateCountsFromMinCallsOn", "ACrowdThatFailsOpensOnce",
		"FailuresOfSeveralProcessesOpenTogether"),
	"opens one failure early": judgedBy(func(p *breaker.Policy) { p.ConsecutiveFailures = max(p.ConsecutiveFailures-1, 1) },
		"ConsecutiveFailuresOpenAtExactlyTheThreshold", "ASuccessRestartsTheCount"),
	"opens one failure late": judgedBy(func(p *breaker.Policy) { p.ConsecutiveFailures++ },
		"ConsecutiveFailuresOpenAtExactlyTheThreshold"),
	"hears of failures only": deaf(breaker.Success, "ASuccessRestartsTheCount",
		"ASuccessOfOneProcessRestartsTheCountOfAll", "ASuccessOfACallFromBeforeTheFailuresCountsToo", "ProbeSuccessesInARowClose"),
	"window a moment short": judgedBy(func(p *breaker.Policy) { p.Window -= time.Millisecond },
		"WindowFailuresCountExactlyOneWindow"),
	"window a moment long": judgedBy(func(p *breaker.Policy) { p.Window += time.Millisecond },
		"WindowFailuresCountExactlyOneWindow"),
	"window without an end":       judgedBy(func(p *breaker.Policy) { p.Window = time.Hour }, "FailureRateCountsFromMinCallsOn"),
	"knows no MinCalls":           judgedBy(func(p *breaker.Policy) { p.MinCalls = 1 }, "FailureRateCountsFromMinCallsOn"),
	"counts from beyond MinCalls": judgedBy(func(p *breaker.Policy) { p.MinCalls++ }, "FailureRateCountsFromMinCallsOn"),
	"a call of SlowAfter is slow": judgedBy(func(p *breaker.Policy) { p.SlowAfter-- }, "SlowRateCountsCallsSlowerThanSlowAfter"),
	"looks at one rule only": judgedBy(func(p *breaker.Policy) {
		if p.ConsecutiveFailures > 0 {
			p.WindowFailures, p.FailureRate, p.SlowRate = 0, 0, 0
		}
	}, "AnyRuleThatIsMetOpens"),
	"WindowFailures of many wait": judgedBy(func(p *breaker.Policy) { p.WindowFailures++ }, "WindowFailuresOfSeveralProcessesOpenAtOnce"),
	"ignored is a success": {breaks: []string{"IgnoredResultsAreNotCounted", "AnIgnoredProbeFreesItsSlotWithoutAVerdict"},
		reported: func(_ jsonStore, _ string, _ breaker.Policy, _ *breaker.Permit, r *breaker.Result) bool {
			if r.Outcome == breaker.Ignored {
				r.Outcome = breaker.Success
			}
			return false
		}},
	"fresh circuits are open": {breaks: []string{"FreshKeyIsClosed"},
		read: func(_ jsonStore, _ breaker.Policy, snap *breaker.Snapshot) {
			if snap.Generation == 0 {
				snap.State = breaker.StateOpen
			}
		}},

	// Cooldown.
	"says the whole cooldown": {breaks: []string{"OpenRejectsWithTheTimeReallyLeft"},
		acquired: func(_ *breaker.Permit, rejected **breaker.RejectedError, p breaker.Policy) {
			if *rejected != nil {
				(*rejected).RetryAfter = p.Cooldown
			}
		}},
	"counts its rejections": spoiling(func(before, after *breaker.Circuit) {
		if before.State == breaker.StateOpen && after.State == breaker.StateOpen {
			after.Streak++
		}
	}, "RejectionsAreNotCounted"),
	"keeps the probe's transition to itself": {breaks: []string{"TheFirstCallAfterTheCooldownIsTheProbe", "EachTransitionIsToldOnceByWhoMadeIt",
		"TransitionsNameTheProcess", "ACooldownThatEndsUnderAnOverrideIsOver", "SnapshotChangesNothing"},
		acquired: func(pm *breaker.Permit, _ **breaker.RejectedError, _ breaker.Policy) { pm.Transitions = nil }},
	"counts in 32 bits": {breaks: []string{"LongTimesDoNotOverflow"},
		acquired: func(_ *breaker.Permit, rejected **breaker.RejectedError, _ breaker.Policy) {
			if *rejected != nil {
				(*rejected).RetryAfter = time.Duration(int32((*rejected).RetryAfter.Milliseconds())) * time.Millisecond
			}
		}},
	"knows no MaxCooldown": judgedBy(func(p *breaker.Policy) { p.MaxCooldown = 0 }, "FailedRecoveriesDoubleTheCooldownUpToMaxCooldown"),
	"forgets no recovery": spoiling(func(before, after *breaker.Circuit) {
		after.Reopens = max(before.Reopens, after.Reopens)
	}, "FailedRecoveriesDoubleTheCooldownUpToMaxCooldown"),
	"has no jitter":   judgedBy(func(p *breaker.Policy) { p.CooldownJitter = 0 }, "JitterSpreadsTheCooldown"),
	"jitters too far": judgedBy(func(p *breaker.Policy) { p.CooldownJitter *= 1.5 }, "JitterSpreadsTheCooldown"),
	"ignores Retry-After": judgedBy(func(p *breaker.Policy) { p.MaxRetryAfter = -1 },
		"RetryAfterStretchesTheCooldownUpToMaxRetryAfter", "RetryAfterOfAnyFailureInTheRowCounts"),
	"trusts Retry-After": judgedBy(func(p *breaker.Policy) { p.MaxRetryAfter = 9 * time.Minute },
		"RetryAfterStretchesTheCooldownUpToMaxRetryAfter"),
	"goes by the cooldown of today": {breaks: []string{"APolicyChangeLeavesTheDeadlineOfAnOpenCircuit"},
		read: func(_ jsonStore, p breaker.Policy, snap *breaker.Snapshot) {
			if !snap.OpenedAt.IsZero() {
				snap.RetryAt = snap.OpenedAt.Add(p.Cooldown)
			}
		}},

	// Probes.
	"grants probes without end": {breaks: []string{"AtMostMaxProbesInTheFleet", "ALapsedLeaseGoesToOneNewProbe", "ACrowdGetsExactlyMaxProbes"},
		acquired: func(pm *breaker.Permit, rejected **breaker.RejectedError, _ breaker.Policy) {
			if *rejected != nil && (*rejected).State == breaker.StateHalfOpen {
				pm.Probe, *rejected = "one too many", nil
			}
		}},
	"one probe at a time, whatever MaxProbes": judgedBy(func(p *breaker.Policy) { p.MaxProbes = 1 },
		"AtMostMaxProbesInTheFleet", "ACrowdGetsExactlyMaxProbes"),
	"leases never lapse": judgedBy(func(p *breaker.Policy) { p.ProbeLease = 1000 * time.Hour }, "ALapsedLeaseGoesToOneNewProbe"),
	"one success closes": judgedBy(func(p *breaker.Policy) { p.ProbeSuccesses = 1 },
		"ProbeSuccessesInARowClose", "HalfOpenStartsFromZero"),
	"MinCalls binds probes": {breaks: []string{"MinCallsDoesNotBindProbes"},
		reported: func(_ jsonStore, _ string, p breaker.Policy, pm *breaker.Permit, r *breaker.Result) bool {
			return pm.Probe != "" && r.Outcome == breaker.Failure && p.FailureRate > 0
		}},
	"each failed probe restarts the cooldown": {breaks: []string{"AFailedProbeRestartsTheCooldownOnce"},
		reported: func(s jsonStore, key string, p breaker.Policy, pm *breaker.Permit, r *breaker.Result) bool {
			if r.Outcome != breaker.Failure || pm.Probe == "" {
				return false
			}
			_ = s.update("", key, func(c *breaker.Circuit, m breaker.Moment) {
				if c.State == breaker.StateOpen {
					c.RetryAt = m.Now.Add(p.Cooldown).UnixMilli()
				}
			})
			return false
		}},
	"remembers the last round of probes": spoiling(func(before, after *breaker.Circuit) {
		if after.State != breaker.StateClosed {
			after.ProbeSuccesses = max(before.ProbeSuccesses, after.ProbeSuccesses)
		}
	}, "HalfOpenStartsFromZero"),
	"an ignored probe keeps its slot": deaf(breaker.Ignored, "AnIgnoredProbeFreesItsSlotWithoutAVerdict",
		"HistoryTellsOfEverythingNewestFirst"),
	"closes with its counts": spoiling(func(before, after *breaker.Circuit) {
		if before.State == breaker.StateHalfOpen && after.State == breaker.StateClosed {
			after.Streak, after.Counted = before.Streak, before.Counted
		}
	}, "CountsAreClearBeforeClosedIsVisible", "ResetClosesAndClearsAllCounts"),

	// Reading.
	"a Snapshot takes a probe": {breaks: []string{"SnapshotChangesNothing"},
		read: func(s jsonStore, p breaker.Policy, snap *breaker.Snapshot) {
			if snap.State == breaker.StateHalfOpen {
				_, _ = s.Acquire(context.Background(), snap.Key, p)
			}
		}},
	"an open circuit reads open": {breaks: []string{"PastItsCooldownAnOpenCircuitReadsHalfOpen", "HalfOpenStartsFromZero"},
		read: func(_ jsonStore, _ breaker.Policy, snap *breaker.Snapshot) {
			if snap.State == breaker.StateHalfOpen && snap.ProbesInFlight == 0 {
				snap.State = breaker.StateOpen
			}
		}},
	"an open circuit has no counts": {breaks: []string{"AnOpenCircuitShowsTheCountsItOpenedWith"},
		read: func(_ jsonStore, _ breaker.Policy, snap *breaker.Snapshot) {
			if snap.State != breaker.StateClosed {
				snap.WindowCalls, snap.WindowFailures = 0, 0
			}
		}},
	"forgets the last failure": spoiling(func(_, after *breaker.Circuit) {
		if after.State != breaker.StateClosed {
			after.LastFailure = nil
		}
	}, "LastFailureIsKept"),

	// Late results.
	"ignores generations": {breaks: []string{"LateResultsOfAnEarlierGenerationChangeNothing", "ResultsOfCallsFromBeforeAnOperatorsStepChangeNothing"},
		reported: func(s jsonStore, key string, p breaker.Policy, pm *breaker.Permit, _ *breaker.Result) bool {
			snap, _ := s.Snapshot(context.Background(), key, p)
			pm.Generation = snap.Generation
			return false
		}},
	"ignores who owns a lease": {breaks: []string{"ALapsedLeaseGoesToOneNewProbe", "LateResultsOfAnEarlierGenerationChangeNothing"},
		reported: func(s jsonStore, key string, _ breaker.Policy, pm *breaker.Permit, _ *breaker.Result) bool {
			_ = s.read(key, func(c *breaker.Circuit, _ breaker.Moment) {
				if pm.Probe != "" && len(c.Leases) > 0 {
					pm.Probe = c.Leases[0].Owner
				}
			})
			return false
		}},

	// Overrides and Reset.
	"counts under an override": {breaks: []string{"ForcedClosedLetsEveryCallRunAndNothingTrips", "ResultsOfCallsFromBeforeAnOperatorsStepChangeNothing"},
		reported: func(s jsonStore, key string, _ breaker.Policy, _ *breaker.Permit, r *breaker.Result) bool {
			_ = s.update("", key, func(c *breaker.Circuit, _ breaker.Moment) {
				if c.Override != nil && r.Outcome == breaker.Failure {
					c.Streak++
				}
			})
			return false
		}},
	"an override to open is one to closed": {breaks: []string{"ForcedOpenLetsNoCallRun"},
		override: func(o *breaker.Override) { o.State = breaker.StateClosed }},
	"overrides have no end": {breaks: []string{"ATimedOverrideEndsOnTime"}, override: func(o *breaker.Override) { o.For = 0 }},
	"overrides all end":     {breaks: []string{"ForcedOpenLetsNoCallRun"}, override: func(o *breaker.Override) { o.For = time.Minute }},
	"the first override stays": spoiling(func(before, after *breaker.Circuit) {
		if before.Override != nil && after.Override != nil {
			after.Override = before.Override
		}
	}, "ANewOverrideReplacesTheOld"),
	"overrides are anonymous": {breaks: []string{"ForcedOpenLetsNoCallRun", "HistoryTellsWhatOperatorsDid"},
		override: func(o *breaker.Override) { o.By = "" }},
	"clearing an override resets": {breaks: []string{"AClearedOverrideGivesTheCircuitBackAsItWas"},
		clear: func(s jsonStore, key string, p breaker.Policy) (*breaker.Transition, error) {
			return s.Reset(context.Background(), key, p, "bob")
		}},
	"a Reset keeps the counts": spoiling(func(before, after *breaker.Circuit) {
		if n := len(after.Log); n > 0 && after.Log[n-1].Kind == breaker.EventReset {
			after.Streak = before.Streak
		}
	}, "ResetClosesAndClearsAllCounts"),
	"a Reset leaves the override": {breaks: []string{"ResetClosesAndClearsAllCounts"},
		reset: func(s jsonStore, key string, p breaker.Policy) (*breaker.Transition, error) {
			snap, _ := s.Snapshot(context.Background(), key, p)
			t, err := s.Reset(context.Background(), key, p, "eve")
			if snap.Override != nil {
				_, err = s.Force(context.Background(), key, p, *snap.Override)
			}
			return t, err
		}},

	// Transitions.
	"tells nobody": {breaks: []string{"EachTransitionIsToldOnceByWhoMadeIt", "AnOperatorsTransitionIsToldOnceByWhoMadeIt", "ACrowdThatFailsOpensOnce"},
		told: func(*breaker.Transition) *breaker.Transition { return nil }},
	"tells everybody": {breaks: []string{"EachTransitionIsToldOnceByWhoMadeIt", "AnOperatorsTransitionIsToldOnceByWhoMadeIt",
		"TransitionsOfACrowdAreOneChain"},
		acquired: func(pm *breaker.Permit, rejected **breaker.RejectedError, _ breaker.Policy) {
			if *rejected != nil {
				pm.Transitions = append(pm.Transitions, breaker.Transition{Key: (*rejected).Key, To: breaker.StateOpen})
			}
		}},
	"counts are those after": {breaks: []string{"EachTransitionIsToldOnceByWhoMadeIt"},
		told: func(t *breaker.Transition) *breaker.Transition {
			if t != nil {
				t.Counts = breaker.Counts{}
			}
			return t
		}},
	"transitions are anonymous": {breaks: []string{"TransitionsNameTheProcess"},
		told: func(t *breaker.Transition) *breaker.Transition {
			if t != nil {
				t.Instance = ""
			}
			return t
		}},

	// Processes.
	"steps are not atomic": {torn: true, breaks: []string{"ACrowdGetsExactlyMaxProbes", "ACrowdThatFailsOpensOnce",
		"TransitionsOfACrowdAreOneChain"}},
	"each process has circuits of its own": {alone: true, breaks: []string{"FailuresOfSeveralProcessesOpenTogether",
		"WindowFailuresOfSeveralProcessesOpenAtOnce", "ProcessesThatComeLaterFindWhatIsThere", "AtMostMaxProbesInTheFleet"}},

	// Keys.
	"trims keys":                 misnaming(strings.TrimSpace),
	"keys are valid UTF-8":       misnaming(func(k string) string { return strings.ToValidUTF8(k, "\ufffd") }),
	"keys end at a zero byte":    misnaming(func(k string) string { k, _, _ = strings.Cut(k, "\x00"); return k }),
	"keys are cut to 1023 bytes": misnaming(func(k string) string { return k[:min(len(k), 1023)] }),
	"keys have no case":          misnaming(strings.ToLower),
	"lists keys twice": {breaks: []string{"KeysListsEachCircuitOnceWithItsVeryBytes", "KeysListsCircuitsThatWereOnlySteered"},
		listed: func(keys []string) []string { return append(keys, keys...) }},
	"one history for all": {breaks: []string{"HistoryOfOneCircuitIsNotAnothers"},
		history: func(events []breaker.Event) []breaker.Event {
			return append(events, breaker.Event{At: time.UnixMilli(1), Kind: breaker.EventFailure})
		}},

	// History.
	"history is oldest first": {breaks: []string{"HistoryTellsOfEverythingNewestFirst", "HistoryTellsWhatOperatorsDid", "HistoryKeepsTheLastHundredEvents"},
		history: func(events []breaker.Event) []breaker.Event { slices.Reverse(events); return events }},
	"history keeps fifty": {breaks: []string{"HistoryKeepsTheLastHundredEvents"},
		history: func(events []breaker.Event) []breaker.Event { return events[:min(len(events), 50)] }},
	"history without failures":    forgetting(breaker.EventFailure, "HistoryTellsOfEverythingNewestFirst"),
	"history without probes":      forgetting(breaker.EventProbe, "HistoryTellsOfEverythingNewestFirst"),
	"history without transitions": forgetting(breaker.EventTransition, "HistoryTellsOfEverythingNewestFirst"),
	"history without overrides":   forgetting(breaker.EventOverride, "HistoryTellsWhatOperatorsDid"),
	"history without their end":   forgetting(breaker.EventCleared, "HistoryTellsWhatOperatorsDid"),
	"history without resets":      forgetting(breaker.EventReset, "HistoryTellsWhatOperatorsDid"),
}
