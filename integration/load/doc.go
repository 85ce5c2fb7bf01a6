// Package load makes many calls, for long, and with keys that an attacker
// chooses. CI has short forms; flags give the long ones:
//
//	go test -race -run Calls ./load -calls 1000000
//	go test -run Soak -timeout 30m -v ./load -soak 10m
//	go test -run Attacker -timeout 30m -v ./load -attack 1000000
package load
