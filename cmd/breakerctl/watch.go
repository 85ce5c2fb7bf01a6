package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/breakerkit/breaker"
)

func newWatch(s *settings, t terminal) *cobra.Command {
	interval := time.Second
	cmd := &cobra.Command{
		Use: "watch", Short: "Watch the circuits, full screen", Args: with(cobra.NoArgs),
		Long: `Watch the circuits, full screen; those that are not closed come first.

Keys: up and down (or k and j) choose a circuit; / filters by a part of the key;
a shows all or only those not closed; o, c, x and r hold the chosen one open,
hold it closed, let go of it, and reset it, each after a y; q ends.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return usagef("--interval is %v: must be at least 100ms", interval)
			}
			return s.withBreaker(func(b *breaker.Breaker) error {
				m := &watch{ctx: s.operator(cmd.Context()), b: b, who: s.who(), interval: interval, all: true}
				options := []tea.ProgramOption{tea.WithContext(cmd.Context()), tea.WithInput(t.in), tea.WithOutput(t.out)}
				if _, ok := t.out.(*os.File); !ok { // nobody says how large it is
					options = append(options, tea.WithWindowSize(80, 24))
				}
				_, err := tea.NewProgram(m, options...).Run()
				if errors.Is(err, tea.ErrProgramKilled) {
					return nil
				}
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", interval, "how often the circuits are read")
	return cmd
}

// watch is the screen of breakerctl watch.
type watch struct {
	ctx      context.Context
	b        *breaker.Breaker
	who      string
	interval time.Duration

	circuits []circuit
	readAt   time.Time
	err      error
	said     string // what the last command came to

	width, height int
	chosen        string // key
	all           bool   // closed ones too
	filter        string
	typing        bool   // the filter
	asked         string // o, c, x or r, to be confirmed
}

type (
	readMsg struct {
		circuits []circuit
		at       time.Time
		err      error
	}
	tickMsg struct{}
	doneMsg struct {
		said string
		err  error
	}
)

func (m *watch) Init() tea.Cmd { return m.read }

func (m *watch) read() tea.Msg {
	circuits, err := readAll(m.ctx, m.b, func(string) bool { return true })
	return readMsg{circuits, time.Now(), cmp.Or(err, unreadable(circuits))}
}

func (m *watch) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case readMsg:
		m.err = msg.err
		if msg.circuits != nil || msg.err == nil { // what was read last stays on the screen
			m.circuits, m.readAt = msg.circuits, msg.at
			slices.SortStableFunc(m.circuits, func(a, b circuit) int { return rank(a) - rank(b) })
		}
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return tickMsg{} })
	case tickMsg:
		return m, m.read
	case doneMsg:
		m.said, m.err = msg.said, cmp.Or(msg.err, m.err)
	case tea.KeyPressMsg:
		return m, m.press(msg.String(), msg.Text)
	}
	return m, nil
}

// rank puts open circuits first, then half-open ones, then those that are held.
func rank(c circuit) int {
	switch {
	case c.Unreadable != "":
		return 0
	case c.State == breaker.StateOpen:
		return 1
	case c.State == breaker.StateHalfOpen:
		return 2
	case c.Override != nil:
		return 3
	}
	return 4
}

func (m *watch) press(key, text string) tea.Cmd {
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case m.typing:
		m.typeFilter(key, text)
		return nil
	case m.asked != "":
		asked := m.asked
		m.asked = ""
		if key == "y" {
			return m.steer(asked, m.chosen)
		}
		return nil
	}
	switch key {
	case "q", "esc":
		return tea.Quit
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "a":
		m.all = !m.all
	case "/":
		m.typing = true
	case "o", "c", "x", "r":
		if i := m.index(); i >= 0 {
			m.chosen = m.shown()[i].Key
			m.asked = key
		}
	}
	return nil
}

func (m *watch) typeFilter(key, text string) {
	switch key {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	default:
		m.filter += text
	}
}

// shown are the circuits on the list.
func (m *watch) shown() (shown []circuit) {
	for _, c := range m.circuits {
		if (m.all || rank(c) < 4) && strings.Contains(c.Key, m.filter) {
			shown = append(shown, c)
		}
	}
	return shown
}

// index is the place of the chosen circuit on the list; the first, if it is
// not there; -1 if none is.
func (m *watch) index() int {
	shown := m.shown()
	if len(shown) == 0 {
		return -1
	}
	return max(0, slices.IndexFunc(shown, func(c circuit) bool { return c.Key == m.chosen }))
}

func (m *watch) move(by int) {
	if i := m.index(); i >= 0 {
		shown := m.shown()
		m.chosen = shown[min(max(i+by, 0), len(shown)-1)].Key
	}
}

var verbs = map[string]string{"o": "hold open", "c": "hold closed", "x": "let go of", "r": "reset"}

func (m *watch) steer(asked, key string) tea.Cmd {
	return func() (msg tea.Msg) {
		var err error
		switch asked {
		case "o":
			err = m.b.Force(m.ctx, key, breaker.Override{State: breaker.StateOpen, By: m.who})
		case "c":
			err = m.b.Force(m.ctx, key, breaker.Override{State: breaker.StateClosed, By: m.who})
		case "x":
			err = m.b.ClearOverride(m.ctx, key)
		case "r":
			err = m.b.Reset(m.ctx, key)
		}
		if err != nil {
			return doneMsg{err: err}
		}
		return doneMsg{said: fmt.Sprintf("done: %s %s", verbs[asked], readable(key))}
	}
}

var (
	bold   = lipgloss.NewStyle().Bold(true)
	faint  = lipgloss.NewStyle().Faint(true)
	danger = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Red)
	picked = lipgloss.NewStyle().Reverse(true)
	tints  = map[breaker.State]lipgloss.Style{
		breaker.StateOpen: danger, breaker.StateHalfOpen: lipgloss.NewStyle().Foreground(lipgloss.Yellow),
		breaker.StateClosed: lipgloss.NewStyle().Foreground(lipgloss.Green),
	}
)

func (m *watch) View() tea.View {
	v := tea.NewView(m.screen(time.Now()))
	v.AltScreen = true
	return v
}

// screen draws all of it, in as many lines as there are.
func (m *watch) screen(now time.Time) string {
	counts := make(map[breaker.State]int)
	for _, c := range m.circuits {
		counts[c.State]++
	}
	head := fmt.Sprintf("%s  %d circuits: %d open, %d half-open, %d closed", bold.Render("breakerctl"), len(m.circuits),
		counts[breaker.StateOpen], counts[breaker.StateHalfOpen], counts[breaker.StateClosed])
	if m.readAt.IsZero() {
		head = bold.Render("breakerctl") + "  reading"
	} else if age := now.Sub(m.readAt); age > 3*m.interval {
		head += danger.Render("  as of " + short(age) + " ago")
	}
	lines := []string{head, ""}
	shown, chosen := m.shown(), m.index()
	room := max(m.height-12, 3)
	first := max(0, min(chosen-room/2, len(shown)-room))
	lines = append(lines, faint.Render(fmt.Sprintf("%-9s  %-8s  %-8s  %-8s  %s", "STATE", "SINCE", "RETRY IN", "FAILURES", "KEY")))
	for i := first; i < min(first+room, len(shown)); i++ {
		lines = append(lines, m.line(shown[i], i == chosen, now))
	}
	if len(shown) == 0 {
		lines = append(lines, faint.Render("no circuits to show"))
	} else if more := len(shown) - room; more > 0 {
		lines = append(lines, faint.Render(fmt.Sprintf("%d more", more)))
	}
	lines = append(lines, "")
	if chosen >= 0 {
		var detail strings.Builder
		_ = printCircuit(&detail, shown[chosen].Snapshot, now)
		lines = append(lines, strings.Split(strings.TrimRight(detail.String(), "\n"), "\n")...)
	}
	if m.height > 2 && len(lines) > m.height-2 {
		lines = lines[:m.height-2]
	}
	lines = append(lines, m.foot()...)
	for i, line := range lines {
		if m.width > 0 {
			lines[i] = lipgloss.NewStyle().MaxWidth(m.width).Render(line)
		}
	}
	return strings.Join(lines, "\n")
}

func (m *watch) line(c circuit, chosen bool, now time.Time) string {
	row := listRow(c, now)
	text := fmt.Sprintf("  %-8s  %-8s  %-8s  %s", row[2], row[3], row[4], row[0])
	if row[5] != "" {
		text += "  (held by " + row[5] + ")"
	}
	state := fmt.Sprintf("%-9s", row[1])
	if chosen {
		return picked.Render(state + text)
	}
	return tints[c.State].Render(state) + text
}

func (m *watch) foot() []string {
	status := m.said
	if m.err != nil {
		status = danger.Render(readable(m.err.Error()))
	}
	switch {
	case m.typing:
		return []string{status, "filter: " + m.filter + "_  (enter keeps it, esc takes it back)"}
	case m.asked != "":
		return []string{status, danger.Render(verbs[m.asked] + " " + readable(m.chosen) + "? y/n")}
	}
	help := "↑↓ choose  / filter  a all  o hold open  c hold closed  x let go  r reset  q quit"
	if m.filter != "" {
		help = "filter: " + readable(m.filter) + "   " + help
	}
	return []string{status, faint.Render(help)}
}
