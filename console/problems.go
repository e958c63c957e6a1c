package console

import (
	"errors"
	"net/http"

	"pawl/client"
)

var (
	errUnknown   = &client.Problem{ProblemBody: client.ProblemBody{Status: http.StatusUnauthorized, Title: "The service does not know who asks."}}
	errForbidden = &client.Problem{ProblemBody: client.ProblemBody{Status: http.StatusForbidden, Title: "Your roles do not allow this."}}
)

// errNoPage is the error of a path without a screen.
var errNoPage = &client.Problem{ProblemBody: client.ProblemBody{Status: http.StatusNotFound, Title: "There is no such page."}}

// showError shows an error in the frame. What is not the API's is the console's fault, or the API can't be reached.
func (v *visit) showError(err error) {
	problem, ok := errors.AsType[*client.Problem](err)
	if !ok {
		problem = &client.Problem{ProblemBody: client.ProblemBody{
			Status: http.StatusBadGateway, Title: "The service did not answer.", Detail: err.Error(),
		}}
	}
	v.live = ""
	if err := v.showAs(int(problem.Status), "problem", page{Title: problem.Title, Data: problem}); err != nil {
		http.Error(v.w, "This page could not be made: "+err.Error(), http.StatusInternalServerError)
	}
}

// hasStatus says whether the API has answered with a status.
func hasStatus(err error, status int64) bool {
	problem, ok := errors.AsType[*client.Problem](err)
	return ok && problem.Status == status
}

// refusedInput is the problem of an input that the API refuses, nil for all other errors.
func refusedInput(err error) *client.Problem {
	if problem, ok := errors.AsType[*client.Problem](err); ok && problem.Status == http.StatusUnprocessableEntity {
		return problem
	}
	return nil
}
