package main

import (
	"context"
	"net/http"
)

// The integrations. Nothing here speaks of a breaker.

// A CRM knows a customer's contacts.
type CRM struct{ *Base }

// Contacts returns their names.
func (c CRM) Contacts(ctx context.Context) (names []string, err error) {
	err = c.Call(ctx, http.MethodGet, "/contacts", nil, &names)
	return names, err
}

// A Mailer sends mail in a customer's name.
type Mailer struct{ *Base }

// Send returns the number of the message.
func (m Mailer) Send(ctx context.Context, to, text string) (id int, err error) {
	err = m.Call(ctx, http.MethodPost, "/messages", map[string]string{"to": to, "text": text}, &id)
	return id, err
}
