package notify

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"
)

func (c Channel) name(place int) string {
	if c.Name != "" {
		return readable(c.Name)
	}
	scheme, _, _ := strings.Cut(c.URL, ":")
	return fmt.Sprintf("%s[%d]", scheme, place)
}

// newSender returns what sends to a channel. Its errors show no secret.
func newSender(c Channel) (sender, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme == "" {
		return nil, errors.New("the URL can't be read") // what is wrong with it would show it
	}
	if u.Scheme == "http" || u.Scheme == "https" {
		return newWebhook(u, c.Secret)
	}
	if u.Scheme == "telegram" {
		return newTelegram(u)
	}
	s := &service{url: c.URL, hide: newRedactor(u)}
	if u.Scheme != "matrix" { // which calls its server to look at a URL
		if s.idle, err = locate(c.URL); err != nil {
			return nil, s.hide.error(err)
		}
	}
	return s.send, nil
}

// A service sends through one of shoutrrr's services. These heed no context,
// and some have no time limit: a try that takes too long is left behind, and
// the next one gets a service of its own.
type service struct {
	url  string
	hide redactor

	mu   sync.Mutex
	idle types.Service // nil: none is ready
	left int           // tries left behind
}

// maxLeft bounds the goroutines that a service which never returns may hold.
const maxLeft = 4

var errLeftBehind = errors.New("earlier tries have not returned yet")

func (s *service) send(ctx context.Context, m Message) error {
	s.mu.Lock()
	if s.left >= maxLeft {
		s.mu.Unlock()
		return errLeftBehind
	}
	s.left++
	ready := s.idle
	s.idle = nil
	s.mu.Unlock()

	done := make(chan error, 1)
	go func() { done <- s.try(ready, m) }()
	select {
	case err := <-done:
		return s.hide.error(err)
	case <-ctx.Done():
		return fmt.Errorf("no answer in time: %w", ctx.Err())
	}
}

func (s *service) try(ready types.Service, m Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the service panicked: %v", v)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left--
		if err == nil {
			s.idle = ready
		}
	}()
	if ready == nil {
		if ready, err = locate(s.url); err != nil {
			return err
		}
	}
	params, text := types.Params{}, m.text()
	if ready.GetID() == "smtp" {
		params.SetTitle("[breaker] " + m.Subject)
		text = strings.ReplaceAll(text, "\n", "\r\n")
	} else {
		text = harmless.Replace(m.Subject + "\n" + text)
	}
	return ready.Send(text, &params)
}

// harmless keeps a key from being read as a mention of people or as markup.
var harmless = strings.NewReplacer("@", "@\u200b", "<", "‹", ">", "›", "`", "'", "*", "∗")

func locate(rawURL string) (types.Service, error) {
	return new(router.ServiceRouter).Locate(rawURL)
}
