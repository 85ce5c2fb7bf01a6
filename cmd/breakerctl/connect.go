package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/user"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/breakerkit/breaker"
)

// settings are the flags that all commands have.
type settings struct {
	env          func(string) string
	redis        string
	passwordFile string
	ca           string
	cert, key    string
	prefix       string
	timeout      time.Duration
	policyFile   string
	output       string
	by           string
}

func (s *settings) addFlags(f *pflag.FlagSet) {
	f.StringVar(&s.redis, "redis", "", "URL of Redis, without a password (default $BREAKER_REDIS_URL, or redis://localhost:6379)")
	f.StringVar(&s.passwordFile, "password-file", "", "file with the password of Redis (default $BREAKER_REDIS_PASSWORD)")
	f.StringVar(&s.ca, "tls-ca", "", "file with the certificates (PEM) that may sign the server's")
	f.StringVar(&s.cert, "tls-cert", "", "file with our own certificate (PEM)")
	f.StringVar(&s.key, "tls-key", "", "file with the key of our own certificate (PEM)")
	f.StringVar(&s.prefix, "prefix", "breaker", "RedisConfig.Prefix of the fleet")
	f.DurationVar(&s.timeout, "timeout", 3*time.Second, "longest that one request to Redis may take")
	f.StringVar(&s.policyFile, "policy", "", "file with the fleet's Policy as JSON; windows are shown by it (default: the default policy)")
	f.StringVarP(&s.output, "output", "o", "text", "how to print: text or json")
	f.StringVar(&s.by, "by", "", "who you are, for the history (default user@host)")
}

// json reports whether to print JSON.
func (s *settings) json() (bool, error) {
	switch s.output {
	case "json":
		return true, nil
	case "text":
		return false, nil
	}
	return false, usagef("--output is %q: want text or json", s.output)
}

// open returns a Breaker over the fleet's circuits, and what closes it.
func (s *settings) open() (b *breaker.Breaker, closeAll func(), err error) {
	if s.timeout <= 0 {
		return nil, nil, usagef("--timeout is %v: must be positive", s.timeout)
	}
	p, err := s.policy()
	if err != nil {
		return nil, nil, err
	}
	client, err := s.client()
	if err != nil {
		return nil, nil, err
	}
	b, err = breaker.New(breaker.NewRedisStore(client, breaker.RedisConfig{Prefix: s.prefix, MaxStaleness: -1}),
		breaker.Config{Policy: p, StoreTimeout: s.timeout, Instance: "breakerctl", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return b, func() {
		_ = b.Close()
		_ = client.Close()
	}, nil
}

func (s *settings) policy() (breaker.Policy, error) {
	if s.policyFile == "" {
		return breaker.Policy{}, nil
	}
	return readPolicy(s.policyFile)
}

// readPolicy reads a Policy and refuses members that it does not have, which
// are mostly typing errors.
func readPolicy(file string) (p breaker.Policy, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return p, usageError{err}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return p, usagef("policy %s: %w", file, err)
	}
	for name := range members {
		if !policyFields[name] {
			return p, usagef("policy %s: there is no field %q", file, name)
		}
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, usagef("policy %s: %w", file, err)
	}
	if err := p.Validate(); err != nil {
		return p, usagef("policy %s: %w", file, err)
	}
	return p, nil
}

var policyFields = func() map[string]bool {
	names := make(map[string]bool)
	for f := range reflect.TypeFor[breaker.Policy]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names[name] = true
	}
	return names
}()

// client returns a client by the URL; nothing is dialled yet. No error of it
// shows a password.
func (s *settings) client() (redis.UniversalClient, error) {
	redis.SetLogger(silent{}) // what matters comes as an error
	raw := s.redis
	if u, err := url.Parse(raw); raw != "" && err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			return nil, usagef("--redis has a password, which every user of this machine can read: use BREAKER_REDIS_PASSWORD or --password-file")
		}
	}
	raw = cmp.Or(raw, s.env("BREAKER_REDIS_URL"), "redis://localhost:6379")
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" { // the error would show all of it
		return nil, usagef("the URL of Redis can't be read; want something like redis://host:6379")
	}
	password, err := s.password()
	if err != nil {
		return nil, err
	}
	config, err := s.tls()
	if err != nil {
		return nil, err
	}
	client, err := clientOf(u, password, s.env("BREAKER_SENTINEL_PASSWORD"), config)
	if err != nil {
		text := err.Error()
		if p, ok := u.User.Password(); ok && p != "" {
			text = strings.ReplaceAll(text, p, "***")
		}
		return nil, usagef("the URL of Redis: %s", text)
	}
	return client, nil
}

// clientOf returns a client that heeds its context, so that --timeout holds.
func clientOf(u *url.URL, password, sentinelPassword string, config *tls.Config) (redis.UniversalClient, error) {
	scheme, cluster := strings.CutSuffix(u.Scheme, "+cluster")
	u.Scheme = scheme
	switch {
	case cluster:
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, err
		}
		o.Password, o.TLSConfig, o.ContextTimeoutEnabled = cmp.Or(password, o.Password), merge(o.TLSConfig, config), true
		return redis.NewClusterClient(o), nil
	case u.Query().Has("master_name"):
		o, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, err
		}
		o.Password, o.TLSConfig, o.ContextTimeoutEnabled = cmp.Or(password, o.Password), merge(o.TLSConfig, config), true
		o.SentinelPassword = cmp.Or(sentinelPassword, o.SentinelPassword)
		return redis.NewFailoverClient(o), nil
	default:
		o, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, err
		}
		o.Password, o.TLSConfig, o.ContextTimeoutEnabled = cmp.Or(password, o.Password), merge(o.TLSConfig, config), true
		return redis.NewClient(o), nil
	}
}

func (s *settings) password() (string, error) {
	if s.passwordFile == "" {
		return s.env("BREAKER_REDIS_PASSWORD"), nil
	}
	text, err := os.ReadFile(s.passwordFile)
	if err != nil {
		return "", usageError{err}
	}
	return string(bytes.TrimRight(text, "\r\n")), nil
}

// tls returns what the flags say; nil: nothing.
func (s *settings) tls() (*tls.Config, error) {
	if s.ca == "" && s.cert == "" && s.key == "" {
		return nil, nil
	}
	config := new(tls.Config)
	if s.ca != "" {
		text, err := os.ReadFile(s.ca)
		if err != nil {
			return nil, usageError{err}
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, usagef("--tls-ca %s: no certificate in it", s.ca)
		}
	}
	if s.cert != "" || s.key != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return nil, usagef("--tls-cert, --tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// merge adds what the flags say to what the URL says: rediss has TLS.
func merge(config, flags *tls.Config) *tls.Config {
	if config == nil || flags == nil {
		return config
	}
	config.RootCAs, config.Certificates = flags.RootCAs, flags.Certificates
	return config
}

// operator returns a context that says who asks.
func (s *settings) operator(ctx context.Context) context.Context {
	return breaker.WithOperator(ctx, s.who())
}

func (s *settings) who() string {
	if s.by != "" {
		return s.by
	}
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// storeError makes sure that an error of the store counts as one.
func storeError(what string, err error) error {
	if err == nil || errors.Is(err, breaker.ErrStore) || errors.Is(err, breaker.ErrConfig) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", what, breaker.ErrStore, err)
}
