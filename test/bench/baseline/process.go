package main

import (
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"regexp"
)

type input struct {
	OrderID string      `json:"orderId"`
	Amount  json.Number `json:"amount"`
	Item    string      `json:"item"`
}

type step struct {
	Completed bool `json:"completed"`
}

type answer struct {
	OrderID string `json:"orderId"`
	Status  string `json:"status"`
	Steps   struct {
		Charge  step `json:"charge"`
		Reserve step `json:"reserve"`
		Confirm step `json:"confirm"`
	} `json:"steps"`
}

var amountFormat = regexp.MustCompile(`^[0-9]{1,15}(\.[0-9]{1,2})?$`)

func (s *server) process(w http.ResponseWriter, r *http.Request) {
	var in input
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&in); err != nil {
		http.Error(w, "body is not an order", http.StatusBadRequest)
		return
	}
	if in.OrderID == "" || in.Item == "" || !amountFormat.MatchString(in.Amount.String()) {
		http.Error(w, "orderId, amount and item are needed", http.StatusUnprocessableEntity)
		return
	}
	status, err := s.run(r.Context(), in)
	if errors.Is(err, errConflict) {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	if err != nil {
		log.Print(err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(describe(in.OrderID, status)); err != nil {
		log.Print(err)
	}
}

func describe(orderID, status string) answer {
	a := answer{OrderID: orderID, Status: status}
	switch status {
	case "completed":
		a.Steps.Confirm.Completed = true
		fallthrough
	case "confirming":
		a.Steps.Reserve.Completed = true
		fallthrough
	case "reserving":
		a.Steps.Charge.Completed = true
	}
	return a
}
