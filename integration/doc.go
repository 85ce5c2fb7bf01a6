// Package integration holds what takes real servers, real processes and many
// calls to show. Each folder has one kind of proof; docs/reliability.md has the
// results.
package integration
