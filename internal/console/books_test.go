package console_test

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"html"
	"math/big"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pawl/client"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

// figures are the columns of the books, as the CSV of orders has them, and as a page does.
var figures = map[string]string{
	"chargedOrAuthorized": "Charged or authorized:", "refundedOrUndone": "Refunded or undone:", "voided": "Voided or ended:", "authorized": "Still authorized:", "kept": "Kept:",
	"disputed": "In dispute:", "lost": "Lost in disputes:",
}

// TestFiguresAddUp: of orders in every state, the CSV adds up to the days of the report, and each figure of the page leads
// to a list whose totals say the same.
func TestFiguresAddUp(t *testing.T) {
	t.Parallel()
	s := setupWith(t, "")
	s.ordersOfTwoDays(t)
	s.post(t, "/console/books", url.Values{"person": {"local"}}).want(t, 303)
	var report client.VerificationReport
	eventually(t, "the verification ends", func() bool {
		state, err := s.api.GetVerification(t.Context())
		report = state.Report
		return err != nil || state.State == client.VerificationStateDone
	})
	assert.Require(t, report.Right && len(report.Days) == 3, report)

	text, err := s.api.BooksCSV(t.Context(), report.Number, "days")
	assert.NoError(t, err)
	days := rowsOf(t, text)
	sums := map[string]*big.Rat{} // of the orders, by day, currency and figure
	var orders []byte
	for text, err := range s.api.OrdersCSV(t.Context(), client.ListOrdersParams{Limit: 3}) {
		assert.NoError(t, err)
		orders = append(orders, text...)
	}
	for _, order := range rowsOf(t, orders) {
		for figure := range figures {
			key := fmt.Sprint(order["createdAt"][:len("2026-11-01")], order["currency"], figure)
			if sums[key] == nil {
				sums[key] = new(big.Rat)
			}
			sums[key].Add(sums[key], amountOf(order[figure]))
		}
	}
	for _, day := range days {
		for figure := range figures {
			sum := sums[day["day"]+day["currency"]+figure]
			assert.True(t, sum.Cmp(amountOf(day[figure])) == 0, figure, "of", day["day"], day["currency"], "is", day[figure], "and of its orders", sum.FloatString(2))
		}
	}

	checkMovements(t, report)
	text, err = s.api.BooksCSV(t.Context(), report.Number, "months")
	assert.NoError(t, err)
	assert.Equal(t, len(rowsOf(t, text)), len(report.Months))

	checkEachMovement(t, s, report)

	page, links := s.get(t, "/console/books").want(t, 200, "The books are right", `<th scope="row" class="nowrap">Sum<td class="of">USD<td class="number" data-label="Captured:">86.85`), 0
	row, cell := regexp.MustCompile(`(?s)<tr><th scope="row"[^>]*>([^<]*)(?:<td class="of">(\w+))?<td class="number" data-label="Orders:">.*?</tr>`),
		regexp.MustCompile(`data-label="([^"]*)">(?:<strong>)?<a href="([^"]*)">([^<]*)</a>`)
	for _, found := range row.FindAllStringSubmatch(page.body, -1) {
		currency := cmp.Or(found[2], found[1])
		for _, figure := range cell.FindAllStringSubmatch(found[0], -1) {
			label := strings.ReplaceAll(figure[1], "Of kept, under way:", "Kept:")
			list := s.get(t, html.UnescapeString(figure[2])).want(t, 200)
			total := totalOf(list.body, currency, label)
			assert.True(t, total == figure[3], figure[1], "of", found[1], "is", figure[3], "and its list says", total, figure[2])
			links++
		}
	}
	assert.True(t, links >= 20, links, "links", page.body)
	s.get(t, "/console").want(t, 200, `href="/console/orders?q=dispute%3Aopen"`)
	s.get(t, "/console/orders?q=authorized:yes").want(t, 200, ">authorized</bdi>", ">captured in part</bdi>", "!>captured at last</bdi>", "!>voided</bdi>", "!>kept</bdi>")
	s.get(t, "/console/orders?q=voided:yes").want(t, 200, ">voided</bdi>", "!>authorized</bdi>", "!>kept</bdi>", "!>refunded</bdi>")

	amount := "30.00"
	assert.NoError(t, assert.Err(s.api.CaptureOrder(t.Context(), "authorized", client.CaptureBody{Amount: &amount, Reason: "sent"})))
	assert.NoError(t, assert.Err(s.api.VoidOrder(t.Context(), "captured in part", client.VoidBody{Reason: "not sent"})))
	s.get(t, "/console/orders?q=currency:USD+authorized:yes").want(t, 200, "No orders found.", "</time> had Still authorized 48.00 (now 48.00 less).")
	s.get(t, "/console/orders?q=currency:USD+voided:yes").want(t, 200, "</time> had Voided or ended 40.00 (now 18.00 more).")
	s.get(t, "/console/orders?q=currency:USD+refunded:yes").want(t, 200, "!The books of")

	s.sql(t, `SET session_replication_role = replica; INSERT INTO forgotten_sums (placed_on, currency, status, orders, charges, charged, kept)
		VALUES ('2020-01-01', 'USD', 'completed', 1, 1, 5, 5); RESET session_replication_role`)
	s.post(t, "/console/books", url.Values{"person": {"local"}}).want(t, 303)
	eventually(t, "another verification ends", func() bool {
		state, err := s.api.GetVerification(t.Context())
		return err != nil || state.State == client.VerificationStateDone && state.Report.Number > report.Number
	})
	s.get(t, "/console/books").want(t, 200, "2020-01-01", "!from%3A2020-01-01", "!q=currency%3AUSD")
}

// checkMovements: what was undone and refunded today of orders of yesterday is not of yesterday, and months add up.
func checkMovements(t *testing.T, report client.VerificationReport) {
	t.Helper()
	var days []string
	left := map[string]*big.Rat{"USD": new(big.Rat), "EUR": new(big.Rat)}
	for _, m := range slices.Concat(report.Movements, report.Months) {
		kept := amountOf(m.Captured)
		for _, less := range []string{m.Refunded, m.Undone, m.Lost} {
			kept.Sub(kept, amountOf(less))
		}
		assert.True(t, kept.Cmp(amountOf(m.Kept)) == 0, kept.FloatString(2), "of", m)
		left[m.Currency].Add(left[m.Currency], kept)
	}
	for _, m := range report.Movements {
		days = append(days, m.Currency+" "+m.Captured+" "+m.Undone+" "+m.Refunded+" "+m.Lost+" "+m.Kept)
	}
	assert.Equal(t, strings.Join(days, ", "), "EUR 3.10 0.00 0.00 0.00 3.10, USD 42.60 10.75 7.50 1.00 23.35, USD 44.25 0.00 0.00 0.00 44.25")
	for _, money := range report.Money {
		twice := new(big.Rat).Mul(amountOf(money.Kept), big.NewRat(2, 1))
		assert.True(t, left[money.Currency].Cmp(twice) == 0, money.Kept, "kept, by days and months", left[money.Currency].FloatString(2))
	}
}

// checkEachMovement: the movements of a month, as CSV from the page and from the API, add up to what is left of it, and each
// figure of a month or day leads to the movements that it adds up.
func checkEachMovement(t *testing.T, s *service, report client.VerificationReport) {
	t.Helper()
	kinds := map[string]bool{}
	for _, m := range report.Months {
		sum := new(big.Rat)
		file := s.get(t, "/console/movements.csv?period="+m.Period+"&currency="+m.Currency).want(t, 200)
		rows := rowsOf(t, []byte(file.body))
		assert.True(t, slices.IsSortedFunc(rows, func(a, b map[string]string) int {
			return strings.Compare(strings.TrimSuffix(a["at"], "Z"), strings.TrimSuffix(b["at"], "Z"))
		}), "not by time:", file.body)
		for _, row := range rows {
			sum.Add(sum, amountOf(row["amount"]))
			kinds[row["kind"]] = true
		}
		assert.True(t, sum.Cmp(amountOf(m.Kept)) == 0, m.Kept, "left of", m.Period, m.Currency, "by its movements", sum.FloatString(2))
	}
	assert.Equal(t, len(kinds), 5, "kinds of movements")
	month, older := report.Months[0].Period, fmt.Sprint("&report=", report.Number)
	s.get(t, "/console/movements.csv?period="+month).want(t, 200, ",USD,", ",EUR,")
	s.get(t, "/console/movements?currency=USD&period="+month+older).want(t, 200, "In the books, as of ", "The books say the same.", strings.TrimPrefix(older, "&"), fmt.Sprintf("number=%d#months", report.Number))
	file := s.get(t, "/console/movements.csv?period="+month+older).want(t, 200)
	assert.Contains(t, file.header.Get("Content-Disposition"), fmt.Sprintf("%s-report-%d.csv", month, report.Number))
	page, links := s.get(t, "/console/books").want(t, 200), 0
	for _, cell := range regexp.MustCompile(`<a href="(/console/movements\?[^"]*)">([^<]*)</a>`).FindAllStringSubmatch(page.body, -1) {
		s.get(t, html.UnescapeString(cell[1])).want(t, 200, ", "+cell[2]+" ", "The books say the same.")
		links++
	}
	assert.True(t, links >= 12, links, "figures lead to movements", page.body)
	today := report.Movements[0].Period
	s.get(t, "/console/movements?figure=refunded&currency=USD&period="+today).want(t, 200, "Refunded on ", "2 movements, 7.50 USD", `href="/console/order?id=refunded"`, "!id=kept")
	s.get(t, "/console/movements?figure=lost&currency=EUR&period="+today).want(t, 200, "Nothing moved.")
	s.get(t, "/console/movements?figure=other&period="+today).want(t, 404)
	s.get(t, "/console/movements.csv?period=tomorrow").want(t, 422, "a period is a month such as 2026-11")
	for m, err := range s.api.MoneyMovements(t.Context(), client.ListMoneyMovementsParams{To: report.FinishedAt.AddDate(0, 0, -3)}) {
		t.Errorf("%v, %v before anything moved", m, err)
		break
	}
}

func amountOf(text string) *big.Rat {
	sum, ok := new(big.Rat).SetString(cmp.Or(text, "0"))
	if !ok {
		panic(text)
	}
	return sum
}

// totalOf is a figure of the totals of a list.
func totalOf(page, currency, label string) string {
	found := regexp.MustCompile(`(?s)<caption>Totals of .*?<th scope="row">` + currency + `.*?data-label="` + label + `">(?:<strong>)?([^<]*)`).FindStringSubmatch(page)
	if found == nil {
		return ""
	}
	return strings.TrimSpace(found[1])
}

// rowsOf are the rows of a CSV, by the names of their columns.
func rowsOf(t *testing.T, text []byte) (rows []map[string]string) {
	t.Helper()
	lines, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	assert.NoError(t, err)
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, name := range lines[0] {
			row[name] = line[i]
		}
		rows = append(rows, row)
	}
	return rows
}

// ordersOfTwoDays places orders in every state of their money, some of them yesterday.
func (s *service) ordersOfTwoDays(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	place := func(id, amount, currency, item string) {
		t.Helper()
		s.process(t, client.ProcessBody{OrderID: id, Amount: amount, Currency: currency, Item: item})
	}
	refund := func(id, amount string) {
		t.Helper()
		assert.NoError(t, assert.Err(s.api.RefundOrder(ctx, id, client.RefundBody{Amount: &amount, Reason: "broken"})))
	}
	dispute := func(id, reference, amount string, states ...client.DisputeBodyState) {
		t.Helper()
		for _, state := range states {
			assert.NoError(t, assert.Err(s.api.RecordDispute(ctx, id, client.DisputeBody{Reference: reference, State: state, Amount: amount})))
		}
	}
	assert.NoError(t, assert.Err(s.api.SetInventory(ctx, "gone", client.SetInventoryBody{OnHand: 0}, client.SetInventoryParams{IfNoneMatch: "*"})))
	place("kept", "10.00", "USD", "lamp")
	place("refunded", "20.00", "USD", "lamp")
	place("undone", "7.25", "USD", "gone")
	place("undone and kept", "3.50", "USD", "gone")
	assert.NoError(t, assert.Err(s.api.AdjustInventory(ctx, "gone", client.AdjustInventoryBody{Change: 1, Reason: "found"})))
	assert.NoError(t, assert.Err(s.api.RetryOrder(ctx, "undone and kept", client.RetryBody{Reason: "stocked"})))
	eventually(t, "it is completed", func() bool {
		o, err := s.api.GetOrder(ctx, "undone and kept")
		return err == nil && o.Status == client.StatusCompleted
	})
	s.sql(t, `SET session_replication_role = replica; UPDATE orders SET created_at = created_at - interval '1 day', finished_at = finished_at - interval '1 day';
		UPDATE transitions SET at = at - interval '1 day'; UPDATE charges SET created_at = created_at - interval '1 day';
		RESET session_replication_role`)
	refund("refunded", "5.50")
	place("euros", "3.10", "EUR", "lamp")
	place("disputed", "4.00", "USD", "lamp")
	dispute("kept", "d1", "2.00", client.DisputeBodyStateOpened)
	dispute("refunded", "d2", "1.00", client.DisputeBodyStateOpened, client.DisputeBodyStateLost)
	dispute("disputed", "d3", "4.00", client.DisputeBodyStateOpened, client.DisputeBodyStateWon)

	sim := simulator.New()
	provider := httptest.NewServer(sim)
	t.Cleanup(provider.Close)
	s.usePolicy(t, "charge: {executor: simulator, url: "+provider.URL+", capture: later}")
	for _, id := range []string{"authorized", "captured in part", "captured at last", "voided"} {
		place(id, "30.00", "USD", "lamp")
	}
	capture := func(id, amount string, final bool) {
		t.Helper()
		assert.NoError(t, assert.Err(s.api.CaptureOrder(ctx, id, client.CaptureBody{Amount: &amount, Final: final, Reason: "sent"})))
	}
	capture("captured in part", "12.00", false)
	refund("captured in part", "2.00")
	capture("captured at last", "20.00", true)
	assert.NoError(t, assert.Err(s.api.VoidOrder(ctx, "voided", client.VoidBody{Reason: "not sent"})))
	s.usePolicy(t, "reserve: {executor: simulator, url: 'http://127.0.0.1:1'}")
	_, _ = s.api.ProcessOrder(ctx, client.ProcessBody{OrderID: "under way", Amount: "6.60", Item: "lamp"}, client.ProcessOrderParams{Prefer: "respond-async"})
	eventually(t, "the order is charged, and waits for its reservation", func() bool {
		o, err := s.api.GetOrder(ctx, "under way")
		return err == nil && o.Hold == client.OrderHoldRetry
	})
}

// usePolicy activates a policy for new orders.
func (s *service) usePolicy(t *testing.T, source string) {
	t.Helper()
	stored, err := s.api.StorePolicy(t.Context(), client.StorePolicyBody{Source: source})
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(s.api.ActivatePolicy(t.Context(), stored.Version, client.ActivatePolicyBody{Reason: "a test"})))
}
