package pack

import "math"

// maximize solves max c·x subject to rows·x ≤ right, x ≥ 0. Every right side is ≥ 0, so that x = 0
// is a start and no first phase is needed. It returns x and the dual of every row (what a little
// more room in that row would gain). ok is false if the objective is unbounded or the steps run
// out. No proof depends on its result: a bound is computed again from the prices alone (see dual).
//
// It is the tableau simplex with the steepest column and, after many steps, Bland's rule against
// cycles. The programs here have one column per segment size and one row per pattern and cut: tens,
// not thousands.
func maximize(c []float64, rows [][]float64, right []float64) (x, dual []float64, ok bool) {
	t := newTableau(c, rows, right)
	limit := 60 * (len(c) + len(rows) + 10)
	for step := 0; step <= limit; step++ {
		enter := t.enter(step > limit/2)
		if enter < 0 {
			x, dual = t.solution()
			return x, dual, true
		}
		leave := t.leave(enter)
		if leave < 0 {
			return nil, nil, false
		}
		t.pivot(leave, enter)
	}
	return nil, nil, false
}

// tiny is what rounding may leave of a zero.
const tiny = 1e-10

// tableau has one row per rule, with its right side in the last column, and then the objective's
// row.
type tableau struct {
	table   [][]float64
	basis   []int // by rule: the column that it determines
	columns int   // of x; those of the rules' slack follow
}

func newTableau(c []float64, rows [][]float64, right []float64) *tableau {
	columns, count := len(c), len(rows)
	width := columns + count + 1
	t := &tableau{table: make([][]float64, count+1), basis: make([]int, count), columns: columns}
	flat := make([]float64, (count+1)*width)
	for i := range t.table {
		t.table[i] = flat[i*width : (i+1)*width]
	}
	for i, row := range rows {
		copy(t.table[i], row)
		t.table[i][columns+i] = 1
		t.table[i][width-1] = right[i]
		t.basis[i] = columns + i
	}
	objective := t.table[count]
	for j, value := range c {
		objective[j] = -value
	}
	return t
}

// enter returns the column that improves the objective most; with Bland's rule, the first that
// improves it. −1 at the optimum.
func (t *tableau) enter(bland bool) int {
	count := len(t.basis)
	enter, best := -1, -tiny
	for j, value := range t.table[count][:t.columns+count] {
		if value < best {
			enter, best = j, value
			if bland {
				break
			}
		}
	}
	return enter
}

// leave returns the rule that limits a column first; −1 if none does.
func (t *tableau) leave(enter int) int {
	leave, ratio := -1, math.Inf(1)
	for i, row := range t.table[:len(t.basis)] {
		if row[enter] <= tiny {
			continue
		}
		r := row[len(row)-1] / row[enter]
		if r < ratio-tiny || (r <= ratio+tiny && leave >= 0 && t.basis[i] < t.basis[leave]) {
			ratio, leave = r, i
		}
	}
	return leave
}

// pivot makes a rule determine a column.
func (t *tableau) pivot(leave, enter int) {
	pivot := t.table[leave]
	scale := 1 / pivot[enter]
	for j := range pivot {
		pivot[j] *= scale
	}
	for i, row := range t.table {
		factor := row[enter]
		if i == leave || factor == 0 {
			continue
		}
		for j := range row {
			row[j] -= factor * pivot[j]
		}
	}
	t.basis[leave] = enter
}

func (t *tableau) solution() (x, dual []float64) {
	x = make([]float64, t.columns)
	for i, column := range t.basis {
		if column < t.columns {
			row := t.table[i]
			x[column] = math.Max(0, row[len(row)-1])
		}
	}
	count := len(t.basis)
	dual = make([]float64, count)
	for i := range dual {
		dual[i] = math.Max(0, t.table[count][t.columns+i])
	}
	return x, dual
}
