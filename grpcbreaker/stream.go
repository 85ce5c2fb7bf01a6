package grpcbreaker

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/breakerkit/breaker"
)

var errNotReturned = errors.New("the call panicked or ended its goroutine")

// StreamClientInterceptor runs each stream through b, from its beginning to
// its end. As gRPC has it, a stream is over, and judged, when
//
//   - RecvMsg returns an error: io.EOF is a Success, any other is judged;
//   - RecvMsg returns the one message of a call that has no stream of
//     responses: a Success;
//   - Header or SendMsg returns an error that is not io.EOF, which is judged;
//   - the context of the call is done: Ignored if the caller cancelled it, a
//     Failure if a deadline passed, the caller's or Policy.CallTimeout.
//
// CloseSend ends nothing. Who reads a part of a stream and wants no more
// cancels its context, as gRPC asks for in any case. A stream that is left
// alone, neither read to its end nor cancelled, says nothing of the server; as
// a probe it holds its slot until Policy.ProbeLease is over.
//
// Policy.CallTimeout and SlowAfter look at the whole stream: give streams that
// live long a key and a policy of their own. Config.Fallback has no part in
// streams; OnStoreError holds.
func StreamClientInterceptor(b *breaker.Breaker, opts ...Option) grpc.StreamClientInterceptor {
	o := newOptions(b, opts)
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, begin grpc.Streamer, callOpts ...grpc.CallOption) (grpc.ClientStream, error) {
		key, err := o.keyOf(conn, method)
		if err != nil {
			return nil, withStatus(err)
		}
		call, err := b.Allow(ctx, key)
		if err != nil {
			return nil, withStatus(err)
		}
		s := &stream{desc: desc, call: call, classifier: o.classifier, unwatch: func() bool { return true }}
		err = s.watch(func() error {
			s.ClientStream, err = begin(call.Context(), desc, conn, method, callOpts...)
			return err
		})
		if err != nil {
			s.end(err)
			return nil, err
		}
		s.unwatch = context.AfterFunc(call.Context(), func() { s.settle(call.Context().Err()) })
		return s, nil
	}
}

// A stream settles its call when it is over. As with any stream of gRPC, one
// goroutine may send while another receives.
type stream struct {
	grpc.ClientStream
	desc       *grpc.StreamDesc
	call       *breaker.Call
	classifier breaker.Classifier
	unwatch    func() bool // ends the wait for the context's end; set before the caller has the stream
}

// end settles the call, for a caller of the stream.
func (s *stream) end(err error) {
	s.unwatch() // or a context that lives long would hold the stream
	s.settle(err)
}

// settle settles the call; the first time counts.
func (s *stream) settle(err error) { s.call.Done(judge(s.classifier, err)) }

// watch does one step of the stream. One that panics or ends its goroutine
// ends the stream, too, and goes on as it was.
func (s *stream) watch(step func() error) error {
	returned := false
	defer func() {
		if !returned {
			s.end(errNotReturned)
		}
	}()
	err := step()
	returned = true
	return err
}

func (s *stream) RecvMsg(m any) error {
	err := s.watch(func() error { return s.ClientStream.RecvMsg(m) })
	switch {
	case err == io.EOF, err == nil && !s.desc.ServerStreams:
		s.end(nil)
	case err != nil:
		s.end(err)
	}
	return err
}

func (s *stream) SendMsg(m any) error {
	err := s.watch(func() error { return s.ClientStream.SendMsg(m) })
	s.endIfAborted(err)
	return err
}

func (s *stream) Header() (md metadata.MD, err error) {
	err = s.watch(func() error {
		md, err = s.ClientStream.Header()
		return err
	})
	s.endIfAborted(err)
	return md, err
}

// endIfAborted ends the stream on an error, unless it is io.EOF: then RecvMsg
// has yet to say how it went.
func (s *stream) endIfAborted(err error) {
	if err != nil && err != io.EOF {
		s.end(err)
	}
}
