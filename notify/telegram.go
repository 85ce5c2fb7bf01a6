package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// A telegram sends through a Telegram bot. It takes the place of shoutrrr's,
// which takes a server that can't be reached for success.
type telegram struct {
	api    string
	chats  []string
	hide   redactor
	client *http.Client

	// Where the message last tried has arrived; a lane tries one at a time.
	id   string
	done map[string]bool
}

func newTelegram(u *url.URL) (sender, error) {
	password, _ := u.User.Password()
	if u.User.Username() == "" || password == "" {
		return nil, errors.New("a Telegram URL needs the bot's token, NUMBER:LETTERS, before its @")
	}
	t := &telegram{
		api:  "https://api.telegram.org/bot" + u.User.Username() + ":" + password + "/sendMessage",
		hide: newRedactor(u), client: &http.Client{},
	}
	for chat := range strings.SplitSeq(u.Query().Get("chats"), ",") {
		if chat = strings.TrimSpace(chat); chat != "" {
			t.chats = append(t.chats, chat)
		}
	}
	if len(t.chats) == 0 {
		return nil, errors.New("a Telegram URL needs chats=@CHANNEL,CHAT_ID")
	}
	return t.send, nil
}

func (t *telegram) send(ctx context.Context, m Message) error {
	if t.id != m.ID {
		t.id, t.done = m.ID, make(map[string]bool)
	}
	var errs []error
	for _, chat := range t.chats {
		if t.done[chat] {
			continue
		}
		if err := t.post(ctx, chat, m.Subject+"\n"+m.text()); err != nil {
			errs = append(errs, err)
			continue
		}
		t.done[chat] = true
	}
	return t.hide.error(errors.Join(errs...))
}

// maxTelegram is how many characters Telegram takes in one message.
const maxTelegram = 4096

func (t *telegram) post(ctx context.Context, chat, text string) error {
	if r := []rune(text); len(r) > maxTelegram {
		text = string(r[:maxTelegram])
	}
	body, err := json.Marshal(map[string]any{"chat_id": chat, "text": text, "link_preview_options": map[string]bool{"is_disabled": true}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.api, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		OK          bool
		Description string
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&answer)
	if err != nil || !answer.OK {
		return fmt.Errorf("the server answered %d: %s", resp.StatusCode, readable(answer.Description))
	}
	return nil
}
