package service

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// APIError converts an error to an API error. Codes for errors of the domain are assigned only
// here.
func APIError(err error) *api.Error {
	var done *api.Error
	if errors.As(err, &done) {
		return done
	}

	e := &api.Error{Code: api.CodeFailed, Message: err.Error()}
	for _, k := range []struct {
		kind error
		code api.Code
	}{
		{volume.ErrInvalid, api.CodeInvalid},
		{volume.ErrNotFound, api.CodeNotFound},
		{volume.ErrRefused, api.CodeRefused},
		{volume.ErrTimeout, api.CodeTimeout},
		{volume.ErrPluginUnavailable, api.CodePluginUnavailable},
		{context.DeadlineExceeded, api.CodeTimeout},
	} {
		if errors.Is(err, k.kind) {
			e.Code = k.code
			break
		}
	}

	var de *volume.Error
	if errors.As(err, &de) {
		e.Hint = suggest.Hint(de.Remedy, de.Hint)
	}
	var ce *volume.CallError
	if errors.As(err, &ce) {
		e.Details = map[string]string{api.DetailStep: ce.Step, api.DetailCode: ce.Code, api.DetailSaid: ce.Message, api.DetailRetry: string(ce.Retry)}
		if len(ce.HeldBy) > 0 {
			e.Details[api.DetailHeldBy] = strings.Join(ce.HeldBy, "; ")
		}
		switch {
		case e.Code != api.CodeFailed:
		case ce.Code == volume.CodeUnavailable:
			e.Code = api.CodePluginUnavailable
		case ce.Code == volume.CodeDeadlineExceeded:
			e.Code = api.CodeTimeout
		}

		if e.Hint == "" {
			e.Hint = suggest.Words(ce.Remedy)
		}
	}

	var aw *volume.Awaited
	if errors.As(err, &aw) && ce != nil {
		e.Details[api.DetailTries] = strconv.Itoa(aw.At.Tries)
		if !aw.At.First.IsZero() {
			e.Details[api.DetailFirst] = aw.At.First.UTC().Format(time.RFC3339)
		}
		if time.Until(aw.At.Next) > 0 {
			e.Details[api.DetailNext] = aw.At.Next.UTC().Format(time.RFC3339)
		}
	}

	return e
}

// asAPI converts an error to an API error. It returns nil if there is no error.
func asAPI(err error) error {
	if err == nil {
		return nil
	}
	return APIError(err)
}
