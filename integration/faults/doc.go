// Package faults breaks real Redis servers, and the ways to them, while
// processes use circuits on them, and checks what holds all the same.
package faults
