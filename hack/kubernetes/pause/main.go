// Pause does nothing until it is told to end, and buries the dead meanwhile.
//
// It is the first process of every pod's sandbox and of every embedded node: as
// PID 1 it inherits orphans, and must collect them.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	for {
		bury()
		if <-signals != syscall.SIGCHLD {
			return
		}
	}
}

// bury collects every child that has ended; one signal may stand for several.
func bury() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
	}
}
