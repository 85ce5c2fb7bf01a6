// Package integration holds what takes real servers, real processes, a browser
// or many calls to show. This folder has the dashboard in a browser and the
// admin API held against its document; each other folder has one kind of
// proof, and docs/reliability.md the results.
package integration
