package console

func (c *console) overviewRoutes() { c.get("/console", (*visit).overview) }

func (v *visit) overview() error { return v.show("overview", page{Title: "Overview"}) }
