// Package breakerconfig reads the configuration of a breaker.Breaker from a
// file in YAML, TOML or JSON and from the environment, and reloads its
// policies while the program runs.
//
//	redis:
//	  address: localhost:6379
//	on_store_error: fail_local
//	default:
//	  cooldown: 30s
//	circuits:
//	  stripe:
//	    consecutive_failures: 3
//	  "tenant-*/webhooks":
//	    failure_rate: 0.5
//
// The fields of default and of each circuit are those of breaker.Policy, by
// their names in JSON. A circuit has what default says where it says nothing
// itself. A name with a * is a pattern; see Settings for which one counts.
//
// The environment wins over the file: BREAKER_DEFAULT_COOLDOWN=30s,
// BREAKER_CIRCUITS_STRIPE_CONSECUTIVE_FAILURES=3, BREAKER_REDIS_ADDRESS=...
// In the name of a circuit each character that is no letter or digit of ASCII
// is written as _, and letters are capitals.
//
// What is wrong is said all at once, each error an *Error that names the file,
// the line and the field, or the variable. An unknown field is wrong, and so
// is a variable that begins with BREAKER_ and matches nothing.
package breakerconfig
