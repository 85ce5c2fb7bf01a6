// Package bench compares breaker with its peers: same work, same run.
package bench
