package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/admin"
)

func newServe(s *settings) *cobra.Command {
	listen, tokenFile := "127.0.0.1:8080", ""
	readOnly := false
	var cert, key string
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve the dashboard and the REST API for the whole fleet", Args: with(cobra.NoArgs),
		Long: `Serve the dashboard and the REST API of the fleet's circuits, from Redis alone.

Requests must bear the token of BREAKER_ADMIN_TOKEN or --token-file. Without one
only this machine may read, and nothing can be changed.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			token := s.env("BREAKER_ADMIN_TOKEN")
			if tokenFile != "" {
				text, err := os.ReadFile(tokenFile)
				if err != nil {
					return usageError{err}
				}
				token = string(bytes.TrimSpace(text))
			}
			if (cert == "") != (key == "") {
				return usagef("--cert and --cert-key go together")
			}
			return s.withBreaker(func(b *breaker.Breaker) error {
				l, err := net.Listen("tcp", listen)
				if err != nil {
					return usagef("--listen: %w", err)
				}
				logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
				h := admin.New(b, admin.Config{Token: token, ReadOnly: readOnly, Logger: logger})
				fmt.Fprintf(cmd.OutOrStdout(), "serving on %s\n", l.Addr())
				return serve(cmd.Context(), l, h, cert, key, logger)
			})
		},
	}
	cmd.Flags().StringVar(&listen, "listen", listen, "address to serve on")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token (default $BREAKER_ADMIN_TOKEN)")
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "refuse every change")
	cmd.Flags().StringVar(&cert, "cert", "", "file with a certificate (PEM), to serve by TLS")
	cmd.Flags().StringVar(&key, "cert-key", "", "file with its key (PEM)")
	return cmd
}

// serve serves until ctx ends, and then lets requests under way finish.
func serve(ctx context.Context, l net.Listener, h *admin.Handler, cert, key string, logger *slog.Logger) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn)}
	server.RegisterOnShutdown(h.Close)
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		stopped <- server.Shutdown(limit)
	})
	var err error
	if cert != "" {
		err = server.ServeTLS(l, cert, key)
	} else {
		err = server.Serve(l)
	}
	if stop() { // it ended by itself
		h.Close()
		return err
	}
	if err := <-stopped; err != nil {
		return err
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
