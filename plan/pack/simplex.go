package pack

import "math"

// maximize solves max c·x subject to rows·x ≤ right, x ≥ 0, where every right side is ≥ 0, so that x = 0 is a
// start and no first phase is needed. It returns x and, for every row, its dual (what a little more room in that
// row would bring). ok is false when the objective has no limit or the steps run out; nothing that is proved rests
// on it, because a bound is evaluated again from the prices alone (see dual).
//
// It is the tableau simplex with the steepest column and, after many steps, Bland's rule against cycles. The
// programs here have a column for each segment size and a row for each pattern and cut: tens, not thousands.
func maximize(c []float64, rows [][]float64, right []float64) (x, dual []float64, ok bool) {
	const tiny = 1e-10
	columns, count := len(c), len(rows)
	width := columns + count + 1
	table := make([][]float64, count+1)
	flat := make([]float64, (count+1)*width)
	for i := range table {
		table[i] = flat[i*width : (i+1)*width]
	}
	basis := make([]int, count)
	for i, row := range rows {
		copy(table[i], row)
		table[i][columns+i] = 1
		table[i][width-1] = right[i]
		basis[i] = columns + i
	}
	objective := table[count]
	for j, value := range c {
		objective[j] = -value
	}
	limit := 60 * (columns + count + 10)
	for step := 0; ; step++ {
		if step > limit {
			return nil, nil, false
		}
		enter := -1
		best := -tiny
		for j := 0; j < columns+count; j++ {
			if objective[j] < best {
				enter, best = j, objective[j]
				if step > limit/2 {
					break // Bland: the first column that helps
				}
			}
		}
		if enter < 0 {
			break
		}
		leave := -1
		ratio := math.Inf(1)
		for i := range count {
			if table[i][enter] <= tiny {
				continue
			}
			r := table[i][width-1] / table[i][enter]
			if r < ratio-tiny || (r <= ratio+tiny && leave >= 0 && basis[i] < basis[leave]) {
				ratio, leave = r, i
			}
		}
		if leave < 0 {
			return nil, nil, false
		}
		pivot := table[leave]
		scale := 1 / pivot[enter]
		for j := range pivot {
			pivot[j] *= scale
		}
		for i := range table {
			factor := table[i][enter]
			if i == leave || factor == 0 {
				continue
			}
			row := table[i]
			for j := range row {
				row[j] -= factor * pivot[j]
			}
		}
		basis[leave] = enter
	}
	x = make([]float64, columns)
	for i, column := range basis {
		if column < columns {
			x[column] = math.Max(0, table[i][width-1])
		}
	}
	dual = make([]float64, count)
	for i := range dual {
		dual[i] = math.Max(0, objective[columns+i])
	}
	return x, dual, true
}
