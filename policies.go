package breaker

import (
	"errors"
	"fmt"
	"sync"
)

// SetPolicies replaces the three fields of Config that say which Policy a key
// has, as if New had been given these. What is impossible changes nothing: the
// error names every wrong field and is ErrConfig. policyFor, which may be nil,
// is asked anew about each key.
//
// Circuits are kept as they are. An open one keeps the end of its cooldown;
// what was counted counts on, and a rule that it now meets opens the circuit
// when the next failure is counted. Calls under way end under the policy they
// began with. Policies belong to a process: give all that share a store the
// same ones, and expect each to go by its own meanwhile.
//
// It may be called at any time, also while others call it: the last one stands.
func (b *Breaker) SetPolicies(standard Policy, exact map[string]Policy, policyFor func(key string) (Policy, bool)) error {
	ps, err := newPolicies(standard, exact, policyFor)
	if err != nil {
		return err
	}
	b.policies.Store(ps)
	if b.redis != nil {
		b.redis.views.forget() // verdicts of the last ones
	}
	return nil
}

// policies finds the Policy of a key. Nothing in it changes but the answers of
// policyFor: SetPolicies makes another.
type policies struct {
	one       bool // standard is for every key
	standard  *Policy
	exact     map[string]*Policy
	policyFor func(key string) (Policy, bool)
	asked     *table[askedPolicy] // answers of policyFor
}

type askedPolicy struct {
	once   sync.Once
	policy *Policy
	err    error
}

const maxAskedPolicies = 100_000

// newPolicies refuses an impossible Policy, and names every field that is wrong.
func newPolicies(standard Policy, exact map[string]Policy, policyFor func(string) (Policy, bool)) (*policies, error) {
	errs := []error{standard.validate("Policy")}
	standard = standard.WithDefaults()
	ps := &policies{one: len(exact) == 0 && policyFor == nil, standard: &standard, policyFor: policyFor}
	if len(exact) > 0 {
		ps.exact = make(map[string]*Policy, len(exact))
	}
	for key, p := range exact {
		name := fmt.Sprintf("Policies[%q]", key)
		if err := checkKey(key); err != nil {
			name = "Policies[...]"
			errs = append(errs, err)
		}
		errs = append(errs, p.validate(name))
		p = p.WithDefaults()
		ps.exact[key] = &p
	}
	if policyFor != nil {
		ps.asked = newTable(maxAskedPolicies, func(*askedPolicy) bool { return true })
	}
	return ps, errors.Join(errs...)
}

// of is small enough to be part of its caller.
func (ps *policies) of(key string) (*Policy, error) {
	if ps.one {
		return ps.standard, nil
	}
	return ps.find(key)
}

func (ps *policies) find(key string) (*Policy, error) {
	if p, ok := ps.exact[key]; ok {
		return p, nil
	}
	if ps.policyFor == nil {
		return ps.standard, nil
	}
	a := ps.asked.add(key, func() *askedPolicy { return &askedPolicy{policy: ps.standard} })
	a.once.Do(func() { a.ask(ps, key) }) // not under the table's lock: policyFor is the user's
	return a.policy, a.err
}

func (a *askedPolicy) ask(ps *policies, key string) {
	name := fmt.Sprintf("PolicyFor(%.32q)", key)
	a.err = configError("%s did not return", name) // unless it does
	defer func() {
		if v := recover(); v != nil {
			a.err = configError("%s panicked: %v", name, v)
		}
	}()
	p, ok := ps.policyFor(key)
	a.err = nil
	if ok {
		d := p.WithDefaults()
		a.policy, a.err = &d, p.validate(name)
	}
}
