package console

import (
	"errors"
	"net/http"

	"pawl/client"
)

var (
	errUnknown   = newProblem(http.StatusUnauthorized, "The service does not know who asks.", "")
	errForbidden = newProblem(http.StatusForbidden, "Your roles do not allow this.", "")
	errNoPage    = newProblem(http.StatusNotFound, "There is no such page.", "") // the path has no screen
)

// newProblem is a problem that the console itself has found, as the API would put it.
func newProblem(status int64, title, detail string) *client.Problem {
	return &client.Problem{ProblemBody: client.ProblemBody{Status: status, Title: title, Detail: detail}}
}

// unusable is the error of a form that nothing can be made of.
func unusable(why string) error { return newProblem(http.StatusUnprocessableEntity, why, "") }

// showError shows an error in the frame. What is not the API's is the console's fault, or the API can't be reached.
func (v *visit) showError(err error) {
	problem, ok := errors.AsType[*client.Problem](err)
	if !ok {
		problem = newProblem(http.StatusBadGateway, "The service did not answer.", err.Error())
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
