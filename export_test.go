package breaker

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// NewRedisStoreAt is NewRedisStore with a clock of the test's: the scripts ask
// the list at clockKey for {seconds, microseconds} where they ask TIME else.
func NewRedisStoreAt(client redis.UniversalClient, cfg RedisConfig, clockKey string) *RedisStore {
	s := NewRedisStore(client, cfg)
	s.scripts = newScripts(func(source string) string {
		return strings.ReplaceAll(source, "redis.pcall('TIME')", "redis.call('LRANGE', '"+clockKey+"', 0, 1)")
	})
	return s
}
