// Package integration holds tests that need more than the library does: a
// browser, a reader of OpenAPI.
package integration
