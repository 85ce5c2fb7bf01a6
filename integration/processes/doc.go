// Package processes runs circuits in processes of the operating system. What
// eight of them do, one that is killed and one that is stopped, is tested in the
// root module.
package processes
