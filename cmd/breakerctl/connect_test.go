package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker/internal/redistest"
)

func nilCall(context.Context) error { return nil }

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestARedisThatIsNotThereIsSaidSo(t *testing.T) {
	c := ctl{t: t, env: map[string]string{"BREAKER_REDIS_URL": "redis://ann:hunter22@127.0.0.1:1"}}
	for _, args := range [][]string{{"list"}, {"show", "k"}, {"history", "k"}, {"reset", "k"}, {"open", "k"}} {
		said := c.fails(exitStore, append(args, "--timeout", "2s")...)
		assert.Contains(t, said, "connection refused")
		assert.NotContains(t, said, "hunter22")
	}
}

func TestAServerThatNeverAnswersIsNotWaitedForLong(t *testing.T) {
	server := redistest.Start(t)
	c := on(t, server)
	server.Freeze()
	defer server.Thaw()
	done := make(chan string, 1)
	go func() { done <- c.run("show", "k", "--timeout", "200ms").err }()
	select {
	case said := <-done:
		assert.Contains(t, said, "did not answer")
	case <-time.After(30 * time.Second):
		require.Fail(t, "it hangs with the server")
	}
}

func TestThePasswordComesFromAnywhereButTheCommandLine(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "hunter22")
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("hunter22\n"), 0o600))
	flags := []string{"list", "--redis", "redis://" + server.Addr}
	without := ctl{t: t}
	assert.Contains(t, without.fails(exitStore, flags...), "NOAUTH")
	without.ok(append(flags, "--password-file", file)...)
	ctl{t: t, env: map[string]string{"BREAKER_REDIS_PASSWORD": "hunter22"}}.ok(flags...)
	ctl{t: t, env: map[string]string{"BREAKER_REDIS_URL": "redis://:hunter22@" + server.Addr}}.ok("list")

	said := without.fails(exitUsage, "list", "--redis", "redis://:hunter22@"+server.Addr)
	assert.Contains(t, said, "BREAKER_REDIS_PASSWORD")
	for _, bad := range []string{
		"redis://:hunter22@" + server.Addr + "/x", "redis://:hunter22@ho st", "http://:hunter22@host", "redis://:hunter22@host?x=1",
		"redis://:hunter22@host:port", "redis+cluster://:hunter22@host?x=1", "redis://:hunter22@host?master_name=m&x=1",
	} {
		said += ctl{t: t, env: map[string]string{"BREAKER_REDIS_URL": bad}}.fails(exitUsage, "list")
	}
	assert.NotContains(t, said, "hunter22")
}

func TestACluster(t *testing.T) {
	server := redistest.StartCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}})
	defer client.Close()
	b := fleet(t, client)
	calls(b, 5, "stripe", errDown)
	require.NoError(t, b.Close())
	c := ctl{t: t, env: map[string]string{"BREAKER_REDIS_URL": "redis+cluster://" + server.Addr}}
	assert.Regexp(t, `stripe +open`, c.ok("list"))
	assert.Regexp(t, `(?m)^state +closed$`, c.ok("reset", "stripe"))
}

func TestSentinel(t *testing.T) {
	server := redistest.Start(t)
	_, port, err := net.SplitHostPort(server.Addr)
	require.NoError(t, err)
	calls(fleet(t, server.Client(nil)), 5, "stripe", errDown)

	own, dir := freePort(t), t.TempDir()
	config := filepath.Join(dir, "sentinel.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %s 1\n", own, dir, port), 0o600))
	sentinel := exec.Command("redis-server", config, "--sentinel")
	require.NoError(t, sentinel.Start())
	t.Cleanup(func() {
		_ = sentinel.Process.Kill()
		_ = sentinel.Wait()
	})
	c := ctl{t: t, env: map[string]string{"BREAKER_REDIS_URL": "redis://127.0.0.1:" + own + "?master_name=main"}}
	var r ran
	require.Eventually(t, func() bool { r = c.run("show", "stripe"); return r.code == exitDone }, 20*time.Second, 50*time.Millisecond, "the sentinel starts")
	assert.Regexp(t, `(?m)^state +open$`, r.out)
}

// The user that operations.md names for people who only look can look, and no more.
func TestAWatcherMayLookAndNoMore(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, rules, found := strings.Cut(string(text), "ACL SETUSER watcher on >PASSWORD ")
	require.True(t, found)
	rules, _, _ = strings.Cut(rules, "```")
	server := redistest.Start(t)
	admin := server.Client(nil)
	calls(fleet(t, admin), 5, "stripe", errDown)
	on(t, server).ok("show", "stripe")
	require.NoError(t, admin.ACLSetUser(bg, "watcher", append([]string{"on", ">secret"}, strings.Fields(rules)...)...).Err())

	c := ctl{t: t, env: map[string]string{"BREAKER_REDIS_URL": "redis://watcher@" + server.Addr, "BREAKER_REDIS_PASSWORD": "secret"}}
	assert.Regexp(t, `(?m)^state +open$`, c.ok("show", "stripe"))
	assert.Contains(t, c.ok("history", "stripe"), "connection refused")
	c.ok("list")
	for _, verb := range []string{"reset", "open", "close"} {
		c.fails(exitStore, verb, "stripe")
	}
	on(t, server).ok("open", "held")
	c.fails(exitStore, "clear", "held")
	assert.Regexp(t, `(?m)^state +open$`, c.ok("show", "stripe"), "as before")
	assert.Len(t, strings.Split(strings.TrimSpace(c.ok("history", "stripe")), "\n"), 1+6, "and nothing was written")
}

// certificate writes a certificate for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	return cert, key
}

func TestTLS(t *testing.T) {
	if out, _ := exec.Command("redis-server", "--tls-port", "x").CombinedOutput(); strings.Contains(string(out), "Bad directive") {
		t.Skip("this redis-server has no TLS")
	}
	cert, key := certificate(t)
	port := freePort(t)
	server := redistest.Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	calls(fleet(t, server.Client(nil)), 5, "stripe", errDown)
	c := ctl{t: t, env: map[string]string{"BREAKER_REDIS_URL": "rediss://127.0.0.1:" + port}}
	shown := c.ok("show", "stripe", "--tls-ca", cert, "--tls-cert", cert, "--tls-key", key)
	assert.Regexp(t, `(?m)^state +open$`, shown)
	assert.Contains(t, c.fails(exitStore, "show", "stripe", "--tls-cert", cert, "--tls-key", key), "certificate", "signed by nobody known")
	assert.NotZero(t, c.run("show", "stripe", "--tls-ca", cert).code, "the server wants to see ours")
}
