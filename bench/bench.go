// Package bench compares breaker with its peers: same work, same run. make
// bench runs it and has report write docs/benchmarks.md.
package bench
