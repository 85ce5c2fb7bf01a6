//go:build race

package breaker_test

func init() { raceDetector = true }
