// Integration-base shows integrations with other people's services that are
// protected without knowing it, since they embed one base client:
//
//	go run ./examples/integration-base
//
// A customer's access to a CRM is revoked. The breaker stops calling with the
// dead token; other customers and other integrations go on. When the customer
// connects anew, the circuit is reset and calls are made at once, not an hour
// later. base.go is what a program of yours would look like.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"

	"github.com/breakerkit/breaker"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "integration-base:", err)
		os.Exit(1)
	}
}

// A provider serves whoever has a token that it knows, and counts who asks.
type provider struct {
	answer string
	mu     sync.Mutex
	valid  map[string]bool
	asked  map[string]int
}

func newProvider(answer string, tokens ...string) *provider {
	p := &provider{answer: answer, valid: make(map[string]bool), asked: make(map[string]int)}
	for _, token := range tokens {
		p.valid["Bearer "+token] = true
	}
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	token := req.Header.Get("Authorization")
	p.asked[token]++
	if !p.valid[token] {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	fmt.Fprint(w, p.answer)
}

func (p *provider) revoke(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.valid, "Bearer "+token)
}

func (p *provider) askedBy(token string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked["Bearer "+token]
}

// A teller prints what changes.
type teller struct{ breaker.NopObserver }

func (teller) Transitioned(t breaker.Transition) {
	fmt.Printf("   -> circuit %s is %s (%s)\n", t.Key, t.To, t.Cause)
}

func run(ctx context.Context) error {
	contacts := newProvider(`["Ann","Bo"]`, "acme-1", "acme-2", "globex-1")
	mail := newProvider(`7`, "acme-mail")
	crmServer, mailServer := httptest.NewServer(contacts), httptest.NewServer(mail)
	defer crmServer.Close()
	defer mailServer.Close()

	b, err := newBreaker(teller{})
	if err != nil {
		return err
	}
	defer b.Close()
	acme := CRM{NewBase(b, "crm", "acme", crmServer.URL, "acme-1")}
	globex := CRM{NewBase(b, "crm", "globex", crmServer.URL, "globex-1")}
	mailer := Mailer{NewBase(b, "mail", "acme", mailServer.URL, "acme-mail")}

	// round has every integration make ten calls, and says how they went.
	round := func(title string) (ok map[string]int) {
		fmt.Println(title)
		ok = make(map[string]int)
		for _, c := range []struct {
			name string
			call func() error
		}{
			{"crm/acme", func() error { _, err := acme.Contacts(ctx); return err }},
			{"crm/globex", func() error { _, err := globex.Contacts(ctx); return err }},
			{"mail/acme", func() error { _, err := mailer.Send(ctx, "ann@example.com", "hello"); return err }},
		} {
			var failed, spared int
			for range 10 {
				switch err := c.call(); {
				case err == nil:
					ok[c.name]++
				case errors.Is(err, breaker.ErrOpen):
					spared++
				default:
					failed++
				}
			}
			fmt.Printf("   %-10s  %2d ok, %2d failed, %2d spared\n", c.name, ok[c.name], failed, spared)
		}
		return ok
	}

	before := round("ALL IS WELL")
	contacts.revoke("acme-1")
	during := round("ACME'S ACCESS TO THE CRM IS REVOKED")
	wasted := contacts.askedBy("acme-1") - 10
	fmt.Println("ACME CONNECTS ANEW")
	if err := acme.Reconnect(ctx, "acme-2"); err != nil {
		return err
	}
	after := round("AND CALLS AGAIN")
	fmt.Printf("\nthe dead token was tried %d times\n", wasted)

	for name, n := range before {
		want := 10
		if name == "crm/acme" {
			want = 0
		}
		if n != 10 || during[name] != want || after[name] != 10 {
			return fmt.Errorf("%s: %d, %d and %d calls were ok; want 10, %d and 10", name, n, during[name], after[name], want)
		}
	}
	if wasted != 3 || len(before) != 3 {
		return fmt.Errorf("the dead token was tried %d times; want 3", wasted)
	}
	return nil
}
